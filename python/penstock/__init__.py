"""Sends pictures to a function of a Penstock node and returns its answers. docs/python.md is its page.

    async with penstock.Client("host:5001") as client:
        answer = await client.infer(picture)

    with penstock.SyncClient("host:5001") as client:
        answer = client.infer(picture)
"""

from ._engine import Stats
from .answer import (
    Answer,
    Boxes,
    Busy,
    Classes,
    ClientError,
    Closed,
    Failed,
    Incomplete,
    Kind,
    Late,
    Masks,
    Points,
    Polygons,
    Refused,
    RequestError,
    Stages,
    Status,
    Text,
    Unanswered,
)
from ._wire import Picture
from .client import Client, SyncClient

__all__ = [
    "Answer",
    "Boxes",
    "Busy",
    "Classes",
    "Client",
    "ClientError",
    "Closed",
    "Failed",
    "Incomplete",
    "Kind",
    "Late",
    "Masks",
    "Picture",
    "Points",
    "Polygons",
    "Refused",
    "RequestError",
    "Stages",
    "Stats",
    "Status",
    "SyncClient",
    "Text",
    "Unanswered",
]
