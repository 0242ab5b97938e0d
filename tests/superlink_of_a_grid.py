"""Flower's grid for SuperLinks, with an answer to each of its questions."""

from flwr.app import Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    PullObjectResponse,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    GetNodesResponse,
    PullAppMessagesResponse,
    PushAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid

from fedapps.strategies.base.flower_private import identify_process

RUN = 7


class Link:
    """A SuperLink as the client of its API sees it. Of its nodes 11 and 12, the first
    answers; the second has ``what``: left the SuperLink, or broken its reply off.
    """

    def __init__(self, what):
        self.what, self.objects = what, {}

    def GetNodes(self, request):
        there = [11] if self.what == "left" else [11, 12]
        return GetNodesResponse(nodes=[NodeInfo(node_id=node) for node in there])

    def PushMessages(self, request):
        self.questions = [message_from_proto(one) for one in request.messages_list]
        numbers = [one.metadata.message_id for one in self.questions]
        return PushAppMessagesResponse(message_ids=numbers)

    def PushObject(self, request):
        return PushObjectResponse(stored=True)

    def PullMessages(self, request):
        answering = self.questions if self.what == "broken" else self.questions[:1]
        self.questions = []  # a SuperLink gives up a reply whose content has not come
        replies = [Message(RecordDict(), reply_to=one) for one in answering]
        for reply in replies:
            reply.metadata.__dict__["_message_id"] = reply.object_id
            if reply.metadata.src_node_id == 11:
                self.objects |= get_all_nested_objects(reply)
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(one) for one in replies],
            message_object_trees=[get_object_tree(one) for one in replies],
        )

    def PullObject(self, request):
        content = self.objects.get(request.object_id)
        return PullObjectResponse(
            object_found=content is not None,
            object_available=content is not None,
            object_content=content.deflate() if content is not None else b"",
        )

    def ConfirmMessageReceived(self, request):
        return ConfirmMessageReceivedResponse()


def http_grid(what):
    """Return Flower's grid on such a SuperLink."""
    identify_process(RUN)
    grid = HttpGrid(token="none")
    grid.set_run(Run.create_empty(RUN))
    grid._client = Link(what)
    return grid
