"""Traces for whoever collects them: one OpenTelemetry span per state of an operation."""

from __future__ import annotations

from opentelemetry import trace

from gymckpt.core.operation import OperationState

__all__ = ["StateSpans"]

_tracer = trace.get_tracer("gymckpt")


class StateSpans:
    """The span of the state that one operation is in; without an SDK all of it does nothing."""

    def __init__(self) -> None:
        self._state = ""
        self._span: trace.Span | None = None

    def follow(self, operation: OperationState) -> None:
        """
        End the span of the state that was left and begin that of the new one.

        Args:
            operation: The operation after its latest step.
        """
        if operation.state == self._state:
            return
        if self._span is not None:
            self._span.end()
        self._state = operation.state
        self._span = None
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
