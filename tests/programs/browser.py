# SPDX-License-Identifier: Apache-2.0
"""A Chromium without a window, told what to do over a pipe by its DevTools protocol: nothing but the standard library.

    with Browser() as browser:
        browser.open("http://127.0.0.1:1/")
        browser.wait_for("document.title === 'x'")
        browser.picture("x.png")
"""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

SECONDS = 60.0   # for anything; all of it takes a fraction of that


class Browser:
    def __init__(self, width=1200, height=900, dark=False):
        self.profile = tempfile.mkdtemp(prefix="skein-browser-")
        self.buffer, self.number, self.events = b"", 0, []
        to_it, self.writer = os.pipe()
        self.reader, from_it = os.pipe()

        def set_up():   # Chromium reads from 3 and writes to 4
            one, two = os.dup(to_it), os.dup(from_it)
            os.dup2(one, 3)
            os.dup2(two, 4)
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
             "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
             f"--user-data-dir={self.profile}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=set_up, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "HOME": self.profile})
        os.close(to_it)
        os.close(from_it)
        self.session = None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        if dark:
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.writer)
        os.close(self.reader)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, until):
        while b"\0" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.reader], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            more = os.read(self.reader, 1 << 16)
            if not more:
                raise EOFError(f"the browser has ended with {self.process.wait()}")
            self.buffer += more
        one, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(one)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while True:
            told = self.receive(until)
            if told.get("id") == self.number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                return told["result"]
            self.events.append(told)

    def open(self, url):
        self.call("Page.navigate", url=url)

    def value(self, expression):
        """What an expression of the page gives; a promise is waited for."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{expression}: {told['exceptionDetails'].get('exception', {}).get('description')}")
        return told["result"].get("value")

    def wait_for(self, condition):
        """Until it holds: looked at whenever the page's document changes, and a few times a second."""
        script = f"""new Promise((found) => {{
            const look = () => {{ try {{ if ({condition}) {{ clearInterval(timer); found(true); }} }} catch (e) {{ /* not yet */ }} }};
            const timer = setInterval(look, 50); look();
            setTimeout(() => {{ clearInterval(timer); found(false); }}, {int(SECONDS * 500)});
        }})"""
        until = time.monotonic() + SECONDS
        while True:
            try:
                if self.value(script):
                    return
            except RuntimeError:   # another page was opened meanwhile
                pass
            if time.monotonic() > until:
                raise TimeoutError(f"never: {condition}; the page says:\n{self.value('document.body.innerText')[:2000]}")

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def complaints(self):
        """What the console of the page has told: refused scripts and styles, errors."""
        self.call("Runtime.evaluate", expression="1")
        found = [e["params"]["entry"]["text"] for e in self.events if e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] == "error"]
        return found + [str(e["params"]["exceptionDetails"]) for e in self.events if e.get("method") == "Runtime.exceptionThrown"]

    def asked(self):
        """Every address that the page has asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
