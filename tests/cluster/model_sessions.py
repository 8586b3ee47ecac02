"""Sessions over the model store: several brokers' stores in one process, cut off and ended by the test."""

from __future__ import annotations

from klamm.coordination.store import Create, SessionExpired, State, Unavailable, is_under

from .model_store import ModelStore


class SharedModel(ModelStore):
    def __init__(self):
        super().__init__()
        self.sessions = []

    def session(self):
        session = ModelSession(self, len(self.sessions) + 1)
        self.sessions.append(session)
        return session

    def changed(self, paths):
        for session in self.sessions:
            session.fire(paths)


class Watch:
    def __init__(self, watches, entry):
        self._watches = watches
        self._entry = entry

    def cancel(self):
        self._watches.remove(self._entry)


class ModelSession:
    """`loses_answers` makes transactions happen whose answer never comes."""

    def __init__(self, model, session_id):
        self._model = model
        self.session_id = session_id
        self.state = State.CONNECTED
        self.loses_answers = False
        self._watches = []
        self._callbacks = []

    async def open(self): ...

    async def close(self):
        if self.state is not State.EXPIRED:
            self.end()

    def on_state(self, callback):
        self._callbacks.append(callback)

    def watch(self, prefix, callback):
        entry = (prefix, callback)
        self._watches.append(entry)
        return Watch(self._watches, entry)

    def fire(self, paths):
        if self.state is State.CONNECTED:
            for prefix, callback in list(self._watches):
                if any(is_under(prefix, path) for path in paths):
                    callback()

    async def get(self, path):
        self._check()
        return await self._model.get(path)

    async def list(self, path):
        self._check()
        return await self._model.list(path)

    async def sync(self):
        self._check()

    async def txn(self, operations):
        self._check()
        revision = self._model.apply(operations)
        for operation in operations:
            if isinstance(operation, Create) and operation.ephemeral:
                node = self._model.nodes[operation.path]
                self._model.nodes[operation.path] = node._replace(owner=self.session_id)
        self._model.changed([operation.path for operation in operations])
        if self.loses_answers:
            self.loses_answers = False
            raise Unavailable("no answer")
        return revision

    def _check(self):
        if self.state is State.EXPIRED:
            raise SessionExpired("the session has ended")
        if self.state is State.SUSPENDED:
            raise Unavailable("no connection")

    def go_to(self, state):
        self.state = state
        if state is State.EXPIRED:
            self.end()
        for callback in self._callbacks:
            callback(state)
        if state is State.CONNECTED:
            for _, callback in self._watches:
                callback()

    def end(self):
        """The servers end the session, whether its broker knows or not."""
        gone = [path for path, node in self._model.nodes.items() if node.owner == self.session_id]
        for path in gone:
            del self._model.nodes[path]
        self._model.changed(gone)
