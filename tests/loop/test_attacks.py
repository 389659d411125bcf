"""Attacks on runs that broke something; each runs in a process of its own, since it may hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.slow  # a process each

HEAD = '''
import asyncio, multiprocessing, sys, threading, time
import nbagent as nb
from checker import check_history
from nbagent.interfaces.model import Block, Delta, End, Prepared

AUTO = nb.Approval(mode="auto")
Scripted = nb.models.Scripted


class Odd(BaseException):
    pass


@nb.tool(risk="readonly")
async def good(n: int) -> str:
    """Works."""
    await asyncio.sleep(0.02)
    return "good"


class Model:
    """A model whose answers are what a generator function yields."""

    name, window = "odd", None

    def __init__(self, stream):
        self._stream = stream

    def prepare(self, request):
        return Prepared(request)

    def stream(self, prepared):
        return self._stream()


def outcome(run, seconds=2):
    """The stop reason, or the name of what was raised; hangs are TimeoutError."""
    try:
        return run.result(seconds).stop_reason
    except BaseException as error:
        return type(error).__name__


def goes_on(session):
    """Another run on the session works, and the log holds."""
    def reply(request):
        check_history(request.messages)
        return "fine"

    run = nb.Agent(Scripted([reply])).start("again", session=session)
    return outcome(run) == "end_turn" and session.verify().ok
'''


def child(code: str, *, seconds: float = 30) -> str:
    """What the code prints in a fresh process; it ends hard, since tasks and threads may hang."""
    script = HEAD + dedent(code) + "\nsys.stdout.flush()\nimport os\nos._exit(0)\n"
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": path},
    )
    return done.stdout.strip() or done.stderr[-2000:]


# -- bodies and gates that raise what is no Exception, beside others


@pytest.mark.parametrize("kind", ["async def", "def"])
@pytest.mark.parametrize("error", ["Odd('x')", "GeneratorExit()"])
def test_a_body_beside_others_that_raises_a_base_exception_ends_the_run(
    kind: str, error: str
) -> None:
    said = child(f'''
        @nb.tool(risk="readonly")
        {kind} bad(n: int) -> str:
            """Raises."""
            raise {error}

        session = nb.Session()
        model = Scripted([[nb.call("bad", n=1), nb.call("good", n=2)], "Done."])
        run = nb.Agent(model, tools=[bad, good], approval=AUTO).start("Go.", session=session)
        print(outcome(run) != "TimeoutError", run.done() and goes_on(session))
    ''')
    assert said == "True True"


def test_a_gate_around_a_body_beside_others_that_raises_a_base_exception_ends_the_run() -> None:
    said = child("""
        class Gate:
            async def around(self, call, ctx, following):
                raise Odd

        session = nb.Session()
        model = Scripted([[nb.call("good", n=1), nb.call("good", n=2)], "Done."])
        agent = nb.Agent(model, tools=[good], approval=AUTO, gates=[Gate(), *nb.DEFAULT_GATES])
        run = agent.start("Go.", session=session)
        print(outcome(run) != "TimeoutError", run.done() and goes_on(session))
    """)
    assert said == "True True"


def test_an_approver_that_raises_a_base_exception_is_contained_like_any_that_fails() -> None:
    said = child('''
        @nb.tool(risk="mutating")
        async def write(n: int) -> str:
            """Writes."""
            return "written"

        class Approver:
            async def decide(self, question):
                raise Odd

        run = nb.Agent(Scripted([nb.call("write", n=1), "Done."]), tools=[write]).start(
            "Go.", ui=Approver()
        )
        print(outcome(run))
    ''')
    assert said == "end_turn"


# -- the loop thread


@pytest.mark.parametrize(
    "deed",
    [
        "asyncio.get_running_loop().stop()",
        "asyncio.create_task(leave())",
        "asyncio.get_running_loop().call_soon(sys.exit)",
    ],
)
def test_the_loop_thread_survives_a_body_that_would_end_it(deed: str) -> None:
    said = child(f'''
        async def leave():
            sys.exit(1)

        @nb.tool(risk="readonly")
        async def bad() -> str:
            """Ends the loop."""
            {deed}
            await asyncio.sleep(0.01)
            return "done"

        outcome(nb.Agent(Scripted([nb.call("bad"), "x"]), tools=[bad], approval=AUTO).start("Go."))
        print(outcome(nb.Agent(Scripted(["b"])).start("Go.")))
    ''')
    assert said == "end_turn"


def test_the_loop_thread_survives_an_approver_that_exits() -> None:
    said = child('''
        @nb.tool(risk="mutating")
        async def write(n: int) -> str:
            """Writes."""
            return "written"

        class Approver:
            async def decide(self, question):
                sys.exit(1)

        agent = nb.Agent(Scripted([nb.call("write", n=1), "Done."]), tools=[write])
        outcome(agent.start("Go.", ui=Approver()))
        print(outcome(nb.Agent(Scripted(["b"])).start("Go.")))
    ''')
    assert said == "end_turn"


# -- loops that end under a run


def test_a_run_cancelled_before_its_first_moment_ends_and_frees_the_session() -> None:
    said = child("""
        session, runs = nb.Session(), []

        async def main():
            start = lambda: runs.append(nb.Agent(Scripted(["a"])).start("Go.", session=session))
            asyncio.get_running_loop().call_soon(start)  # asyncio.run cancels it before it begins

        asyncio.run(main())
        print(runs[0].done(), goes_on(session))
    """)
    assert said == "True True"


def test_a_run_cancelled_right_after_start_does_not_hang_who_awaits_it() -> None:
    said = child("""
        async def main():
            run = nb.Agent(Scripted(["a"], delay_s=5)).start("Go.")
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            waiting = asyncio.create_task(run._wait())
            done, _ = await asyncio.wait({waiting}, timeout=1)
            print(bool(done), run.done(), flush=True)
            import os
            os._exit(0)

        asyncio.run(main())
    """)
    assert said == "True True"


def test_a_run_started_while_its_loop_shuts_down_does_not_lock_the_session() -> None:
    said = child("""
        session, runs = nb.Session(), []

        async def other():
            try:
                await asyncio.sleep(10)
            finally:
                runs.append(nb.Agent(Scripted(["a"], delay_s=5)).start("Go.", session=session))

        async def main():
            asyncio.create_task(other())
            await asyncio.sleep(0.01)

        asyncio.run(main())
        print(goes_on(session))
    """)
    assert said == "True"


def test_a_run_whose_loop_was_closed_can_be_interrupted_and_frees_the_session() -> None:
    said = child("""
        session = nb.Session()

        async def main():
            run = nb.Agent(Scripted(["a"], delay_s=5)).start("Go.", session=session)
            await asyncio.sleep(0.05)
            return run

        loop = asyncio.new_event_loop()
        run = loop.run_until_complete(main())
        loop.close()
        try:
            run.interrupt()
        except BaseException as error:
            print(repr(error), end=" ")
        print(run.done(), goes_on(session))
    """)
    assert said == "True True"


def test_a_queued_run_whose_loop_was_closed_does_not_block_those_behind_it() -> None:
    said = child("""
        session = nb.Session()
        first = nb.Agent(Scripted(["a"], delay_s=0.2)).start("Go.", session=session)

        async def main():
            nb.Agent(Scripted(["b"])).start("Go.", session=session)
            await asyncio.sleep(0.05)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        third = nb.Agent(Scripted(["c"])).start("Go.", session=session)
        print(outcome(first), outcome(third))
    """)
    assert said == "end_turn end_turn"


def test_a_queued_run_whose_loop_ends_is_cancelled_and_not_an_invalid_state() -> None:
    said = child("""
        session, runs = nb.Session(), []
        first = nb.Agent(Scripted(["a"], delay_s=0.3)).start("Go.", session=session)

        async def main():
            runs.append(nb.Agent(Scripted(["b"])).start("Go.", session=session))
            await asyncio.sleep(0.05)

        asyncio.run(main())
        print(outcome(runs[0]), outcome(first))
    """)
    assert said == "CancelledError end_turn"


# -- fork


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("door", ["run_sync", "tool on a thread"])
def test_a_forked_process_can_run_agents(door: str) -> None:
    said = child(f'''
        @nb.tool(risk="readonly")
        def read() -> str:
            """Reads, on a thread."""
            return "read"

        def go():
            agent = nb.Agent(Scripted([nb.call("read"), "b"]), tools=[read], approval=AUTO)
            if {door!r} == "run_sync":
                return outcome(nb.Agent(Scripted(["b"])).start("Go."))
            return asyncio.run(asyncio.wait_for(agent.run("Go."), 3)).stop_reason

        def inside(queue):
            try:
                queue.put(go())
            except BaseException as error:
                queue.put(repr(error))

        go()
        fork = multiprocessing.get_context("fork")
        queue = fork.Queue()
        process = fork.Process(target=inside, args=(queue,), daemon=True)
        process.start()
        print(queue.get(timeout=8))
        process.kill()
    ''')
    assert said == "end_turn"


# -- a run that waits for itself, and one that no longer is one's own


def test_a_body_that_awaits_its_own_run_is_told_so_instead_of_hanging_for_ever() -> None:
    said = child('''
        runs = []

        @nb.tool(risk="readonly")
        async def wait() -> str:
            """Waits for the run it is part of."""
            return (await runs[0]).text

        model = Scripted([nb.call("wait"), "Done."])
        runs.append(nb.Agent(model, tools=[wait], approval=AUTO).start("Go."))
        first = outcome(runs[0])
        runs[0].interrupt()
        print(first, outcome(runs[0]))
    ''')
    assert said == "end_turn end_turn"


# -- reviewers, gates and models that are cancelled by themselves


@pytest.mark.parametrize("where", ["reviewer", "gate", "model"])
def test_a_cancellation_from_inside_foreign_code_is_no_cancellation_of_the_caller(
    where: str,
) -> None:
    said = child(f"""
        async def cancelled(*_):
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

        async def stream():
            yield Delta("a")
            await cancelled()

        where = {where!r}
        model = Scripted([[nb.call("good", n=1)], "Done."]) if where != "model" else Model(stream)
        agent = nb.Agent(
            model,
            tools=[good],
            approval=AUTO,
            reviewers=[cancelled] if where == "reviewer" else (),
            gates=[cancelled, *nb.DEFAULT_GATES] if where == "gate" else nb.DEFAULT_GATES,
            recovery=nb.Recovery(base_s=0.01),
        )
        print(outcome(agent.start("Go.")))
    """)
    assert said not in ("CancelledError", "TimeoutError")


# -- Stop


def test_stop_ends_an_answer_whose_pieces_come_without_a_pause() -> None:
    said = child("""
        async def stream():
            for _ in range(2_000_000):
                yield Delta("x")
            yield End("stop")

        run = nb.Agent(Model(stream)).start("Go.")
        time.sleep(0.2)
        run.interrupt()
        print(outcome(run, 1))
    """)
    assert said == "interrupted"


# -- histories and values


def test_a_call_without_a_name_leaves_a_history_that_strict_providers_accept() -> None:
    said = child("""
        def reply(request):
            check_history(request.messages)
            return "Done."

        print(outcome(nb.Agent(Scripted([nb.call(""), reply])).start("Go.")))
    """)
    assert said == "end_turn"


@pytest.mark.parametrize("method", ["__repr__", "__getattr__"])
def test_a_value_that_raises_a_base_exception_when_shown_is_a_result(method: str) -> None:
    said = child(f'''
        class Evil:
            def {method}(self, *args):
                raise Odd

        @nb.tool(risk="readonly")
        def give():
            """Gives something that can't be shown."""
            return Evil()

        agent = nb.Agent(Scripted([nb.call("give"), "b"]), tools=[give], approval=AUTO)
        print(outcome(agent.start("Go.")))
    ''')
    assert said == "end_turn"


def test_a_second_cancellation_while_bodies_are_stopped_keeps_them_out_of_later_runs() -> None:
    said = child('''
        @nb.tool(risk="readonly")
        async def stubborn(n: int) -> str:
            """Swallows cancellation."""
            end = time.monotonic() + 0.6
            while time.monotonic() < end:
                try:
                    await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    pass
            return f"stale {n}"

        @nb.tool(risk="readonly")
        async def slow(n: int) -> str:
            """Takes a second."""
            await asyncio.sleep(n)
            return f"fresh {n}"

        async def main():
            session = nb.Session()
            model = Scripted([[nb.call("stubborn", n=1), nb.call("stubborn", n=2)], "x"])
            run = nb.Agent(model, tools=[stubborn], approval=AUTO).start("Go.", session=session)
            for _ in range(2):  # somebody cancels all tasks of the loop, twice
                await asyncio.sleep(0.1)
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
            await asyncio.wait({asyncio.ensure_future(run._wait())})
            model = Scripted([[nb.call("slow", n=1), nb.call("slow", n=2)], "b"])
            again = nb.Agent(model, tools=[slow], approval=AUTO).start("Go.", session=session)
            await asyncio.wait({asyncio.ensure_future(again._wait())}, timeout=4)
            stale = [
                event.seq
                for event in session.events
                if event.seq >= again._first and event.type == "tool/done"
                and "stale" in str(event.data.raw)
            ]
            print(again.done(), stale, flush=True)
            import os
            os._exit(0)

        asyncio.run(main())
    ''')
    assert said == "True []"


# -- Ctrl-C while a run is being started


def test_ctrl_c_at_any_line_of_starting_a_run_leaves_the_session_and_the_process_usable() -> None:
    bad: list[tuple[int, str]] = []
    for line in range(40, 80):
        said = child(f"""
            import linecache

            seen = 0

            def trace(frame, event, arg):
                global seen
                if "/nbagent/" not in frame.f_code.co_filename:
                    return None
                if event == "line":
                    seen += 1
                    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
                    if seen == {line} and "with " not in text:  # an exit of `with` is CPython's
                        sys.settrace(None)
                        raise KeyboardInterrupt
                return trace

            session, agent = nb.Session(), nb.Agent(Scripted(["a"]))
            agent._assembled(None)
            sys.settrace(trace)
            try:
                agent.run_sync("Go.", session=session)
            except KeyboardInterrupt:
                pass
            sys.settrace(None)
            again = nb.Agent(Scripted(["b"] * 3))
            print(
                outcome(again.start("Go.", session=session), 1), outcome(again.start("Go."), 1)
            )
        """)
        if said != "end_turn end_turn":
            bad.append((line, said))
    assert not bad


# -- what a server sends


@pytest.mark.parametrize(
    "sent",
    [
        '{"choices":"x"}',
        '{"choices":[5]}',
        '{"choices":[{"delta":"x"}]}',
        '{"choices":[{"delta":{"content":["a"]}}]}',
        '{"choices":[{"delta":{"tool_calls":[5]}}]}',
        '{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":7}}]}}]}',
        '{"choices":[{"delta":{"function_call":5}}]}',
        '{"choices":[],"usage":"lots"}',
        '{"choices":[],"usage":{"prompt_tokens":1e308,"completion_tokens":1}}',
    ],
)
def test_a_chunk_of_a_wrong_shape_is_a_model_error_or_passed_over(sent: str) -> None:
    said = child(f"""
        async def serve(reader, writer):
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            size = [l for l in head.lower().split(b"\\r\\n") if l.startswith(b"content-length")]
            await reader.readexactly(int(size[0].split(b":")[1]))
            chunks = [{sent!r}, '{{"choices":[{{"delta":{{"content":"ok"}},"finish_reason":"stop"}}]}}']
            body = "".join(f"data: {{chunk}}\\n\\n" for chunk in [*chunks, "[DONE]"]).encode()
            head = "HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\nConnection: close"
            head += f"\\r\\nContent-Length: {{len(body)}}\\r\\n\\r\\n"
            writer.write(head.encode() + body)
            await writer.drain()
            writer.close()

        async def main():
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            url = f"http://127.0.0.1:{{server.sockets[0].getsockname()[1]}}"
            model = nb.models.OpenAIChat("m", base_url=url, api_key="k")
            agent = nb.Agent(model, recovery=nb.Recovery(attempts=1))
            try:
                print((await agent.run("Go.")).stop_reason)
            except nb.errors.ModelError:
                print("ModelError")
            except Exception as error:
                print(repr(error))

        asyncio.run(main())
    """)
    assert said in ("end_turn", "ModelError")


# -- tasks that begin at once


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_calls_beside_each_other_end_on_a_loop_with_eager_tasks() -> None:
    said = child('''
        @nb.tool(risk="readonly")
        async def quick(n: int) -> str:
            """Awaits nothing."""
            return "quick"

        async def main():
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            model = Scripted([[nb.call("quick", n=1), nb.call("quick", n=2)], "Done."])
            run = nb.Agent(model, tools=[quick], approval=AUTO).start("Go.")
            await asyncio.wait({asyncio.ensure_future(run._wait())}, timeout=2)
            print(run.done(), flush=True)
            import os
            os._exit(0)

        asyncio.run(main())
    ''')
    assert said == "True"
