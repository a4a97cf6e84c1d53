"""Traces for whoever collects them: one OpenTelemetry span per state of an operation."""

from __future__ import annotations

import logging

from opentelemetry import trace

from gymckpt.core.operation import OperationState
from gymckpt.errors import text_of

__all__ = ["StateSpans"]

logger = logging.getLogger("gymckpt")

_tracer = trace.get_tracer("gymckpt")


class StateSpans:
    """The span of the state that one operation is in; without an SDK all of it does nothing."""

    def __init__(self) -> None:
        self._state = ""
        self._span: trace.Span | None = None

    def follow(self, operation: OperationState) -> None:
        """
        End the span of the state that was left and begin that of the new one.

        A tracer that fails costs this state its span, and nothing else.

        Args:
            operation: The operation after its latest step.
        """
        if operation.state == self._state:
            return
        self._state = operation.state
        try:
            self._change(operation)
        except Exception as error:
            logger.warning(
                "operation %r: there is no span of state %r: %s",
                operation.operation_id,
                operation.state,
                text_of(error),
            )

    def _change(self, operation: OperationState) -> None:
        left, self._span = self._span, None
        if left is not None:
            left.end()
        if not operation.settled:
            self._span = _tracer.start_span(
                f"{operation.chart}.{operation.state}",
                attributes={
                    "gymckpt.run": operation.run,
                    "gymckpt.operation_id": operation.operation_id,
                    "gymckpt.epoch": operation.epoch,
                    "gymckpt.instances": len(operation.instances),
                },
            )
