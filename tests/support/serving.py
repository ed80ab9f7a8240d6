"""A server that runs in this process, and plain requests to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, cast

import rdrr
import uvicorn
from rdrr.serve.app import application
from rdrr.serve.guards import hosts_of
from rdrr.serve.jobs import Event, Job
from rdrr.serve.metrics import Metrics
from rdrr.serve.remote_images import Network
from rdrr.serve.texts import Service
from rdrr.serve.worker import Worker


@dataclass
class Running:
    """A server that runs in a thread.

    Attributes:
        port: Where it listens.
        worker: Its worker.
    """

    port: int
    worker: Worker | ScriptedWorker | None

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=300)) as connection:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, names)
            response = connection.getresponse()
            return response.status, response.read()


class ScriptedWorker:
    """A worker whose model writes given texts, a few characters at a time.

    Args:
        model: The model, for its tokenizer and its template.
        texts: The text of each job, in the order in which they come; or what returns it.

    Attributes:
        asked: The jobs that came.
        last: The event after the text.
    """

    last = Event(ids=[2], finish="stop")
    slots, jobs, restarts, is_alive, failure = 4, 0, 0, True, None

    def __init__(self, model: rdrr.Model, *texts: str | Callable[[Job], str]) -> None:
        self.model, self._texts = model, [*texts]
        self.asked: list[Job] = []

    @property
    def prompt(self) -> str:
        """The prompt of the last job."""
        return self.model.decode(self.asked[-1].prompt)

    def submit(self, *jobs: Job) -> None:
        for job in jobs:
            self.asked.append(job)
            script = self._texts[0] if callable(self._texts[0]) else self._texts.pop(0)
            text = script(job) if callable(script) else script
            for at in range(0, len(text), 3):
                job.deliver(Event(text[at : at + 3], [1]))
            job.deliver(self.last)

    def cancel(self, *jobs: Job) -> None:
        pass


@contextmanager
def scripted(
    model: rdrr.Model, *texts: str | Callable[[Job], str], template: Path | None = None
) -> Iterator[tuple[str, ScriptedWorker]]:
    """Serve a model that writes given texts for a block, and return the address."""
    script = ScriptedWorker(model, *texts)
    with serving(script, template=None if template is None else str(template)) as server:
        yield f"http://127.0.0.1:{server.port}", script


@contextmanager
def serving(
    worker: Worker | ScriptedWorker,
    *,
    template: str | None = None,
    network: Network | None = None,
    **guards: Any,
) -> Iterator[Running]:
    """Run a server for a block; the worker has been started."""
    how = {"template": template, "network": network}
    service = Service(
        cast("Worker", worker), "small-llama", ("alias",), Metrics(), 1_800_000_000, **how
    )
    app = application(service, hosts=hosts_of("127.0.0.1"), **guards)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.05)
            assert thread.is_alive(), "the server has ended"
        (listener,) = server.servers
        yield Running(listener.sockets[0].getsockname()[1], worker)
    finally:
        server.should_exit = True
        thread.join()


TOOLS_TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.content %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}{% set f = call.function %}
<tool_call>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if thinks %}<think>
{% endif %}{% endif %}{# </think> #}"""
"""A template whose answers reason and call tools."""
