"""The asyncio client: `klamm.aio.Producer`, `Consumer` and `Admin`. Those of `klamm` are plain.

```python
async with klamm.aio.Producer("localhost:9092") as producer:
    sent = await producer.send("orders", b"...", key=b"42")
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm import _load

if TYPE_CHECKING:
    from klamm.client.admin.admin import Admin as Admin
    from klamm.client.consumer.consumer import Consumer as Consumer
    from klamm.client.consumer.group.sessions import Claim as Claim
    from klamm.client.consumer.group.sessions import Session as Session
    from klamm.client.producer.producer import Delivery as Delivery
    from klamm.client.producer.producer import Producer as Producer
    from klamm.client.producer.producer import RangesDelivery as RangesDelivery

_HOMES = {
    "Admin": "klamm.client.admin.admin",
    "Claim": "klamm.client.consumer.group.sessions",
    "Consumer": "klamm.client.consumer.consumer",
    "Delivery": "klamm.client.producer.producer",
    "Producer": "klamm.client.producer.producer",
    "RangesDelivery": "klamm.client.producer.producer",
    "Session": "klamm.client.consumer.group.sessions",
}

__all__ = list(_HOMES)


if not TYPE_CHECKING:  # or they would take any name for one of ours

    def __getattr__(name: str) -> Any:
        return _load(name, _HOMES, globals())
