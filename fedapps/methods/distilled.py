"""FFGB-distill and what its paper compares it with, which learn one network."""

from clients import FedAvgClient, FedDynClient, FFGBDistillClient
from fedapps.data.public import distiller_of
from fedapps.methods.method import IMAGE_TASKS, Method, torch_client
from strategies import FedAvgDistill, FedAvgDistillOptions, FedDyn, FedDynOptions, FFGBDistill, FFGBDistillOptions

METHODS: dict[str, Method] = {
    "ffgb-distill": Method(
        summary="boosting of functions: clients send weak learners, the server distils the ensemble into one network",
        paper="Shen et al. 2022 (FFGB-distill)",
        trait="boosts",
        strategy=lambda options, task, seed: FFGBDistill(distiller_of(task), options, seed),
        client=torch_client(FFGBDistillClient),
        options=FFGBDistillOptions,
        table="ffgb-distill",
        tasks=IMAGE_TASKS,
        public=True,
        defaults={"clients-per-round": 0},
    ),
    "fedavg-distill": Method(
        summary="FedAvg whose server distils the clients' mean output instead of averaging parameters",
        paper="Lin et al. 2020",
        trait="one global model",
        strategy=lambda options, task, seed: FedAvgDistill(distiller_of(task), options, seed),
        client=torch_client(FedAvgClient),
        options=FedAvgDistillOptions,
        table="fedavg-distill",
        tasks=IMAGE_TASKS,
        public=True,
        defaults={"clients-per-round": 0},
    ),
    "feddyn": Method(
        summary="linear corrections at clients and server make local and global optima agree",
        paper="Acar et al. 2021",
        trait="one global model",
        strategy=lambda options, task, seed: FedDyn(options),
        client=torch_client(FedDynClient),
        options=FedDynOptions,
        table="feddyn",
    ),
}
