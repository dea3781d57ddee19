"""A web server with the fastapi package: one optimised model, called by a pool of threads.

    python examples/server.py

The program starts no network service: it sends its requests to the application through fastapi's own client.
Run `uvicorn server:app` in this folder for a real one.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from torch import nn

import torchrlopt

FEATURES = 32
torch.set_num_threads(1)  # requests share the processors, instead of the threads of one request
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(FEATURES, 1024),
    nn.BatchNorm1d(1024),
    nn.ReLU(),
    nn.Linear(1024, 1024),
    nn.ReLU(),
    nn.Linear(1024, 3),
).eval()
# Nothing is compiled yet. The first request does it once, while others are answered by the original.
fast = torchrlopt.optimise(model, while_compiling="original")
app = FastAPI()


@app.post("/predict")
def predict(rows: list[list[float]]) -> list[list[float]]:
    """Scores of three classes for each row; fastapi calls plain functions in a pool of threads."""
    with torch.inference_mode():
        return fast(torch.tensor(rows).reshape(-1, FEATURES)).tolist()


if __name__ == "__main__":
    requests = [torch.randn(1 + at % 8, FEATURES) for at in range(64)]
    with TestClient(app) as client, ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda rows: client.post("/predict", json=rows.tolist()).json(), requests))
    with torch.inference_mode():
        for rows, reply in zip(requests, replies, strict=True):
            torch.testing.assert_close(torch.tensor(reply), model(rows), rtol=1e-4, atol=1e-4)
    print(fast.report)
    print(f"{len(replies)} requests of 1 to 8 rows answered by 8 threads, all as by the model")
