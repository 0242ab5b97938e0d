"""The runs of a sweep as tasks of a Ray cluster. Each uses the inline engine, on any
machine with a free CPU.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from fedapps.engines.cluster import joined
from fedapps.errors import reason
from fedapps.lab.sweeps.pool import Ended, PlannedRun, mark_interrupted, run_one


def run_on_cluster(runs: Sequence[PlannedRun], address: str, gpus: float = 0.0) -> Iterator[Ended]:
    """Start the runs and yield each when it ends. ``gpus``: share of a GPU for each
    run. A run whose machine dies is not started again.
    """
    if not runs:
        return
    with joined(address) as ray:
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_run_there)
        running = {task.remote(run): run for run in runs}
        try:
            while running:
                for reference in ray.wait(list(running), timeout=1.0)[0]:
                    run = running.pop(reference)
                    try:
                        summary, place = ray.get(reference)
                    except Exception as error:
                        cause = getattr(error, "cause", None) or error
                        yield Ended(run, {}, f"{type(cause).__name__}: {reason(cause)}")
                    else:
                        yield Ended(run, summary, place=place)
        except BaseException:
            for reference in running:
                ray.cancel(reference, force=True)
            mark_interrupted(run.folder for run in running.values())
            raise


def _run_there(run: PlannedRun) -> tuple[dict[str, Any], str]:
    """Execute the run here; return its summary and this machine's name."""
    import ray

    summary = run_one(run)
    context = ray.get_runtime_context()
    return summary, f"{ray.util.get_node_ip_address()}, {context.get_node_id()[:6]}"
