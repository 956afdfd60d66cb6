"""A program whose types mypy checks."""

import asyncio
from typing import AsyncIterator, List

import numpy as np
import numpy.typing as npt

import penstock


async def camera() -> AsyncIterator[npt.NDArray[np.uint8]]:
    yield np.zeros((128, 128, 3), np.uint8)


async def detect(address: str) -> List[float]:
    scores: List[float] = []
    async with penstock.Client(address, pace=1e8) as client:
        answer = await client.infer(np.zeros((8, 8), np.uint8), deadline=0.1, format=penstock.Picture("grey8", 4, 8, 8))
        scores.extend(answer.boxes.scores.tolist())
        async for answer in client.stream(camera()):
            if answer.status is penstock.Status.OK:
                scores.append(float(answer.classes.probabilities[0]))
    return scores


def values(address: str) -> npt.NDArray[np.float32]:
    with penstock.SyncClient(address) as client:
        try:
            return client.infer(np.zeros(4, np.float16)).values
        except penstock.Late as e:
            print(e.answer.stages.total)
            raise


if __name__ == "__main__":
    asyncio.run(detect("127.0.0.1:5001"))
