"""What the requests of a controller have in common: when a broker obeys them."""

from __future__ import annotations

from klamm.apis.broker import Broker
from klamm.cluster.fencing import check_own_broker_epoch
from klamm.model.errors import ErrorCode, KafkaError


def check_sender(broker: Broker, controller_epoch: int, broker_epoch: int) -> None:
    """Raises a KafkaError unless the request is of the current controller and for this broker as it is now.

    The controller may see a registration before the broker knows that it is made. Until then the broker says
    so, and is asked again.
    """
    own_epoch = broker.broker_epoch
    if own_epoch is None:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this broker is not registered now")
    check_own_broker_epoch(broker_epoch, own_epoch)
    if broker_epoch > own_epoch:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this broker does not know its broker epoch yet")
    broker.cluster.obey(controller_epoch)
