#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# REUSE-IgnoreStart: the licence lines below are those of files that this one writes or looks at.
# label: runtime
"""Every structural check finds the violation planted for it, names its line, and is quiet on a clean tree."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("SKEIN_SOURCE_DIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SCRIPTS = os.path.join(SOURCE, "scripts")
HEAD = "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n// A thing: why it is there.\n"


def tool(name: str) -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    deps = os.environ.get("SKEIN_DEPS") or os.path.join(cache, "skein")
    return shutil.which(os.path.join(deps, "test-python", "bin", name)) or shutil.which(name) or ""


def compiler_is_there() -> bool:
    return bool(os.environ.get("CXX") or shutil.which("clang++-19") or shutil.which("g++"))


class planted(unittest.TestCase):
    def setUp(self):
        self.tree = tempfile.mkdtemp(prefix="skein-checks-")
        self.addCleanup(shutil.rmtree, self.tree)
        os.makedirs(os.path.join(self.tree, "scripts"))
        shutil.copy(os.path.join(SCRIPTS, "layers.toml"), os.path.join(self.tree, "scripts"))
        self.put("include/skein/core/config.hpp", HEAD + "#define SKEIN_VERSION_STRING \"0\"\n")
        self.put("include/skein/core/a.hpp", HEAD + "#include <skein/core/config.hpp>\n")
        self.put("include/skein/net/b.hpp", HEAD + "#include <skein/core/a.hpp>\n")
        for test in ("core/config", "core/a", "net/b"):
            self.put(f"tests/{test}_test.cpp", "// SPDX-License-Identifier: Apache-2.0\n")
        self.run_script("check_mirror.py", "--write")

    def put(self, path: str, text: str):
        full = os.path.join(self.tree, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)

    def run_script(self, name: str, *more: str):
        return subprocess.run([sys.executable, os.path.join(SCRIPTS, name), self.tree, *more], capture_output=True, text=True, check=False)

    def clean(self, check: str):
        done = self.run_script(f"check_{check}.py")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def found(self, check: str, *texts: str):
        done = self.run_script(f"check_{check}.py")
        self.assertEqual(done.returncode, 1, f"nothing found: {done.stdout}{done.stderr}")
        for text in texts:
            self.assertIn(text, done.stdout)

    def test_layers_clean(self):
        self.clean("layers")

    def test_layers_upward(self):
        self.put("include/skein/core/up.hpp", HEAD + "#include <skein/net/b.hpp>\n")
        self.found("layers", "include/skein/core/up.hpp:4", "core -> net goes up")

    def test_layers_foreign_detail(self):
        self.put("include/skein/core/detail/x.hpp", HEAD)
        self.put("include/skein/net/c.hpp", HEAD + "#include <skein/core/detail/x.hpp>\n")
        self.found("layers", "include/skein/net/c.hpp:4", "belongs to core alone")

    def test_layers_floors_of_the_runtime(self):
        """Who may see whom between the kernel of a cluster and a program: the layers as they are in this tree."""
        for low, high in (("sched", "proc"), ("proc", "rt"), ("rt", "spmd"), ("rt", "program"), ("spmd", "cluster"), ("cluster", "program")):
            self.put(f"include/skein/{low}/c.hpp", HEAD + f"#include <skein/{high}/d.hpp>\n")
            self.found("layers", f"include/skein/{low}/c.hpp:4", f"{low} -> {high} goes up")
            self.put(f"include/skein/{low}/c.hpp", HEAD)

    def test_layers_floors_inside_a_layer(self):
        for name in ("package", "head_log", "head"):
            self.put(f"include/skein/cluster/{name}.hpp", HEAD)
        self.put("include/skein/cluster/head_log.hpp", HEAD + "#include <skein/cluster/package.hpp>\n#include <skein/core/a.hpp>\n")
        self.clean("layers")
        self.put("include/skein/cluster/package.hpp", HEAD + "#include <skein/cluster/head_log.hpp>\n")
        self.put("include/skein/cluster/detail/head_memory.hpp", HEAD + "#include <skein/cluster/head.hpp>\n")
        self.found("layers", "package.hpp:4: part packages -> memory (cluster/head_log.hpp) goes up; it may know none",
                   "head_memory.hpp:4: part memory -> what makes the parts (cluster/head.hpp) goes up; it may know packages")

    def test_layers_umbrella(self):
        self.put("include/skein/net/c.hpp", HEAD + "#include <skein/core.hpp>\n")
        self.found("layers", "includes the umbrella")

    def test_layers_door(self):
        self.put("include/skein/rt/c.hpp", HEAD + "#include <asio/ip/tcp.hpp>\n")
        self.found("layers", "include/skein/rt/c.hpp:4", "Asio", "outside its door")

    def test_layers_ignores_comments(self):
        self.put("include/skein/core/c.hpp", HEAD + "// #include <skein/net/b.hpp>\n/*\n#include <torch/torch.h>\n*/\n")
        self.clean("layers")

    def test_layers_sockets_and_json(self):
        self.put("include/skein/rt/c.hpp", HEAD + "#include <sys/socket.h>\n#include <nlohmann/json.hpp>\n")
        self.put("include/skein/net/detail/d.hpp", HEAD + "#include <netinet/in.h>\n")
        self.found("layers", "include/skein/rt/c.hpp:4: sockets (sys/socket.h)", "include/skein/rt/c.hpp:5: nlohmann-json")
        self.assertNotIn("net/detail/d.hpp", self.run_script("check_layers.py").stdout)

    def put_bodies(self, more: str = ""):
        """A header whose bodies are compiled once, and the file of src/ that does it."""
        self.put("include/skein/net/b.hpp", HEAD + "int f();\n#if SKEIN_HEADER_ONLY\n#include <skein/net/detail/b.ipp>\n#endif\n")
        self.put("include/skein/net/detail/b.ipp", HEAD + "#include <skein/core/a.hpp>\n" + more + "SKEIN_INLINE int f() {\n    return 1;\n}\n")
        self.put("src/net.cpp", HEAD + "#include <skein/net/b.hpp>\n#include <skein/net/detail/b.ipp>\n")

    def test_bodies_clean(self):
        self.put_bodies()
        for check in ("layers", "headers", "doors", "await", "text"):
            self.clean(check)

    def test_layers_bodies_belong_to_their_layer(self):
        self.put("include/skein/rt/detail/x.hpp", HEAD)
        self.put_bodies("#include <skein/rt/c.hpp>\n#include <asio/read.hpp>\n")
        self.put("include/skein/core/c.hpp", HEAD + "#include <skein/core/detail/c.ipp>\n")
        self.put("include/skein/core/detail/c.ipp", HEAD + "#include <skein/net/b.hpp>\n")
        self.found("layers", "net/detail/b.ipp:5: net -> rt goes up", "net/detail/b.ipp:6: Asio", "core/detail/c.ipp:4: core -> net goes up",
                   "core/c.hpp:4: skein/core/detail/c.ipp is included without #if SKEIN_HEADER_ONLY")

    def test_layers_bodies_point_one_way(self):
        self.put_bodies("#include <skein/net/b.hpp>\n")
        self.found("layers", "include/skein/net/detail/b.ipp:5", "includes its own public header")
        self.put_bodies("#include <skein/net/detail/c.ipp>\n")
        self.put("include/skein/net/detail/c.ipp", HEAD + "#include <skein/net/detail/b.ipp>\n")
        self.put("include/skein/net/detail/d.ipp", HEAD)
        self.found("layers", "net/detail/b.ipp -> net/detail/c.ipp -> net/detail/b.ipp", "net/detail/d.ipp:1: no header includes it",
                   "net/detail/d.ipp:1: no file of src/ includes it")

    def test_layers_circle(self):
        self.put("include/skein/net/b.hpp", HEAD + "#include <skein/net/detail/b.hpp>\n")
        self.put("include/skein/net/detail/b.hpp", HEAD + "#include <skein/net/b.hpp>\n")
        self.found("layers", "files include each other", "net/b.hpp -> net/detail/b.hpp -> net/b.hpp")

    @unittest.skipUnless(compiler_is_there(), "no compiler")
    def test_torch_free(self):
        self.clean("torch_free")
        self.put("include/skein/net/c.hpp", HEAD + "#include <ATen/ATen.h>\n")
        self.found("torch_free", "must not need LibTorch")

    @unittest.skipUnless(compiler_is_there(), "no compiler")
    def test_lines(self):
        def budget(lines):
            self.put("scripts/cost.toml", f"""
[forms]
compiled = ["-DSKEIN_COMPILED"]
header_only = ["-DLONG"]
[budget."skein/core.hpp"]
compiled = {{lines = 1, parse = 1.0}}
header_only = {{lines = {lines}, parse = 1.0}}
""")
        self.put("include/skein/core/a.hpp", HEAD + "#if defined(LONG)\nint a;\n\nint b;\n#endif\nint c;\n")
        budget(3)
        self.clean("lines")
        budget(2)
        self.found("lines", "skein/core.hpp, header_only: 3 preprocessed lines, the budget is 2")
        self.assertNotIn("compiled:", self.run_script("check_lines.py").stdout)
        self.put("scripts/cost.toml", '[forms]\nheader_only = []\n[budget."skein/gone.hpp"]\nheader_only = {lines = 1, parse = 1.0}\n')
        self.found("lines", "there is no include/skein/gone.hpp")

    def test_headers(self):
        self.clean("headers")
        self.put("include/skein/core/long.hpp", HEAD + "\n" * 450)
        self.put("include/skein/core/detail/fine.ipp", HEAD + "\n" * 450)
        self.put("include/skein/core/detail/long.ipp", HEAD + "\n" * 600)
        self.put("include/skein/core/bare.hpp", "int x;\n")
        self.found("headers", "long.hpp:450", "453 lines", "long.ipp:600", "603 lines", "bare.hpp:1", "#pragma once", "opening comment")
        self.assertNotIn("fine.ipp:", self.run_script("check_headers.py").stdout)

    def test_headers_median(self):
        for name in "cdefg":
            self.put(f"include/skein/core/{name}.hpp", HEAD + "\n" * 200)
        self.found("headers", "the median header has 203 lines, the limit is 120")

    def test_headers_functions(self):
        body = "    a();\n" * 57
        self.put("include/skein/core/c.hpp", HEAD + f"""
namespace skein {{
template <class T, class U = decltype(f<int>({{}}))>
auto fits(std::vector<T> v) -> T {{
{body}}}

class box {{
    int member_{{0}};
    box(int a)
        : member_{{a}}, other_(2) {{
{body}        if (a) {{ b(); }}
    }}
    bool operator()(int a) const noexcept {{
{body}        "a {{ in a text"; // and }} in a comment
        auto l = [] {{ return 1; }};
    }}
}};
}} // namespace skein
""")
        self.found("headers", "c.hpp:69: box has 61 lines", "c.hpp:130: operator() has 61 lines")
        self.assertNotIn("fits", self.run_script("check_headers.py").stdout)

    def test_headers_bodies(self):
        self.put("include/skein/core/detail/c.ipp", HEAD + "namespace skein {\nnamespace {\nint x;\n}\nstatic int f() { return 1; }\n}\n")
        self.found("headers", "c.ipp:5: an anonymous namespace", "c.ipp:8: a static function")

    def without_exceptions(self, *more: str):
        """No class has an exception, or those of `more` alone."""
        with open(os.path.join(SCRIPTS, "layers.toml"), encoding="utf-8") as file:
            text = file.read()
        for name in ("class_exceptions", "ring_exceptions"):
            text = re.sub(rf"^{name} = \[\n.*?^\]\n", "", text, flags=re.M | re.S)
        self.put("scripts/layers.toml", "\n".join(more) + "\n" + text)

    def large(self, functions: int, fields: int):
        self.put("include/skein/core/c.hpp", HEAD + """
namespace skein {
class small {
public:
    small() = default;
    small(const small&) = delete;
    friend bool operator==(const small&, const small&);
    std::function<void(int, int)> told = {}; // a field
    template <class T>
    void f(T with = T{1}, int n = g()) { with.other(n); }
    enum class way { there, back };
    struct within { int a = 0, b = 0; };
};
struct large : small {
    explicit large(int a) : a_{a}, b_(1) { f(2); }
""" + "".join(f"    [[nodiscard]] std::map<int, int> f{i}(int a, std::function<void()> b) const noexcept;\n" for i in range(functions - 1))
                 + "".join(f"    std::map<int, int> m{i}{{}};\n" for i in range(fields - 2)) + """    int a_, b_{0};
};
} // namespace skein
""")

    def test_classes(self):
        self.without_exceptions()
        self.large(40, 30)
        self.clean("classes")
        self.large(41, 30)
        self.found("classes", "c.hpp:17: large has 41 functions and 30 fields, the limits are 40 and 30")
        self.large(40, 31)
        self.found("classes", "large has 40 functions and 31 fields")
        self.without_exceptions('class_exceptions = [["core", "large", 50, 31, "a reason"]]')
        self.large(51, 31)
        self.found("classes", "large has 51 functions and 31 fields, and had 50 and 31; it is to become smaller")
        self.large(50, 31)
        self.clean("classes")
        self.large(45, 31)
        self.found("classes", "large of core has 45 functions and 31 fields now, no more 50 and 31; say so there")
        self.large(40, 30)
        self.found("classes", "take the line out")
        self.put("include/skein/core/c.hpp", HEAD)
        self.found("classes", "there is no large in core")

    def two_files(self, second: str):
        self.put("include/skein/core/detail/one.ipp", HEAD + "namespace skein {\nvoid box::begin() {\n    end();\n    self->turn();\n}\n}\n")
        self.put("include/skein/core/detail/two.ipp", HEAD + f"namespace skein {{\nvoid box::end() {{\n    {second}\n}}\nvoid box::turn() {{ end(); }}\n}}\n")

    def test_classes_in_a_ring(self):
        self.without_exceptions()
        for harmless in ("other.begin();", "other->begin();", "others::begin();", "// begin();", "\"begin()\";", "turn();"):
            self.two_files(harmless)
            self.clean("classes")
        for call in ("begin();", "self->begin();", "this->begin();", "return begin() + 1;"):
            self.two_files(call)
            self.found("classes", "one.ipp:1: 2 files of box call each other in a ring: one.ipp two.ipp")
        self.without_exceptions('ring_exceptions = [["core", "box", 2, "a reason"]]')
        self.clean("classes")
        self.two_files("turn();")
        self.found("classes", "files of box of core are in no ring; take the line out")
        self.without_exceptions('ring_exceptions = [["core", "box", 3, "a reason"]]')
        self.two_files("begin();")
        self.found("classes", "box of core has a ring of 2 files now, no more 3")

    def test_unused(self):
        self.put("include/skein/core/lonely.hpp", HEAD)
        self.put("include/skein/program/run.hpp", HEAD)
        self.put("include/skein/data/folder.hpp", HEAD)
        self.put("include/skein/net/detail/e.ipp", HEAD + "#include <skein/net/b.hpp>\n#include <skein/data/folder.hpp>\n")
        self.found("unused", "include/skein/core/lonely.hpp:1: nothing of skein includes it", "data/folder.hpp is included by include/skein/net/detail/e.ipp")
        self.assertNotIn("run.hpp", self.run_script("check_unused.py").stdout)

    def test_promises(self):
        self.put("docs/semantics.md", "| | |\n|---|---|\n| C1. What? | That. |\n| C1. And? | This. |\n| C2. Or? | Not. |\n| So? | None. |\n")
        self.put("tests/core/c_test.cpp", 'TEST_CASE("what", "[C1][core]") {}\nTEST_CASE("no", "[C9]") {}\n')
        self.found("promises", "docs/semantics.md:4: C1 is there twice", "docs/semantics.md:6: a promise without a number",
                   "docs/semantics.md:5: no test names [C2]", "tests/core/c_test.cpp:2: docs/semantics.md has no promise C9")

    def test_tables(self):
        long, fits = "x" * 301, "x" * 300
        self.put("docs/limitations.md", f"| what | then |\n|---|---|\n| a | {fits} |\n| {long} | b |\n\n{long}\n\n```\n| {long} |\n```\n")
        self.put("docs/semantics.md", f"| | |\n|---|---|\n| C1. `a \\| {fits}` | b |\n| C2. | <a id=\"c-2\"></a>{fits} |\n")
        self.found("tables", "docs/limitations.md:4: a cell of 301 characters, at most 300", "docs/semantics.md:3: a cell of 311 characters")
        said = self.run_script("check_tables.py").stdout
        self.assertEqual(said.count("a cell of"), 2, said)
        os.remove(os.path.join(self.tree, "docs/limitations.md"))
        self.put("docs/semantics.md", f"| C1. What? | {fits} |\n")
        self.found("tables", "docs/limitations.md:1: is not there")
        self.put("docs/limitations.md", "| what | then |\n")
        self.clean("tables")

    def test_rules(self):
        self.put("scripts/layers.toml", """
layers = ["core", "net", "gone"]
torch_free = ["core/*", "net/z*.hpp"]
entry_points = [["net/b.hpp", "what a program includes"], ["net/c.hpp", "what a program includes"]]
umbrella_exceptions = [["core/a.hpp", "so"]]
mirror_exceptions = [["core/a.hpp", "there is nothing to test"]]
size_exceptions = [["core/a.hpp", "a table of numbers"]]
function_exceptions = [["core/a.hpp", "f", "a table of numbers"]]
shared_details = [["net", "core/detail/gone.hpp", "there was a reason"]]
text_exceptions = [["README.md", "x", "a reason"]]
[[third_party]]
name = "Asio"
includes = ["asio/*"]
doors = ["net/*", "rt/*"]
[[door]]
pattern = 'a::'
allowed = ["include/skein/core/*", "include/skein/rt/y.hpp"]
""")
        self.found("rules", "layers.toml:2: layers: gone", "layers.toml:3: torch_free: net/z*.hpp", "entry_points: net/c.hpp",
                   "umbrella_exceptions, without a reason: core/a.hpp", "mirror_exceptions, though it has a test", "size_exceptions, though",
                   "function_exceptions, though", "shared_details, though net does not include it: core/detail/gone.hpp", "text_exceptions: README.md", "doors of Asio: rt/*", "allowed of a::: include/skein/rt/y.hpp")
        found = self.run_script("check_rules.py").stdout
        for fine in ("core/*", "net/b.hpp", "net/* "):
            self.assertNotIn(f": {fine} ", found)

    def test_rules_clean(self):
        self.put("scripts/layers.toml", "layers = ['core', 'net']\ntorch_free = ['net/*']\nthird_party = []\ndoor = []\n" + "".join(
            f"{kind}_exceptions = []\n" for kind in ("umbrella", "mirror", "size", "function", "text")) + "entry_points = []\n")
        self.clean("rules")

    def test_mirror(self):
        self.clean("mirror")
        self.put("include/skein/core/lonely.hpp", HEAD)
        self.found("mirror", "tests/core/lonely_test.cpp", "include/skein/core.hpp:1")

    def test_mirror_wants_a_line_for_the_index(self):
        self.put("include/skein/net/b.hpp", "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n#include <skein/core/a.hpp>\n")
        self.found("mirror", "include/skein/net/b.hpp:1", "opening comment")

    def test_threads_clean(self):
        self.put("tests/core/a_test.cpp", HEAD + '''#include <catch2/catch_test_macros.hpp>
#include <thread>
void on_ranks(int n, const std::function<void(int)>& body) {
    std::vector<std::thread> all;
    for (int i = 0; i < n; ++i) all.emplace_back([&, i] { body(i); });   // CHECK(here) is a comment
}
void look(int a) { CHECK(a == 1); }
TEST_CASE("a") {
    int seen = 0;
    std::thread other([&] { seen = 1; });
    other.join();
    look(seen);
    on_ranks(1, [&](int) { CHECK(seen == 1); });
    on_ranks(2, [&](int rank) { expect(rank < 2, "CHECK(in a text)"); });
    { const auto body = [&] { CHECK(seen == 1); }; body(); }
    const auto body = [&] { seen = 2; };
    std::thread([&] { body(); }).join();
    std::vector<int> numbers;
    numbers.emplace_back([&] { REQUIRE(seen == 2); return 1; }());
}
''')
        self.clean("threads")

    def test_threads_that_assert(self):
        self.put("tests/support/ranks.hpp", HEAD + '''inline void on_ranks(int n, const std::function<void(int)>& body) {
    std::vector<std::jthread> all;
    for (int i = 0; i < n; ++i) all.emplace_back([&, i] { body(i); });
}
inline void on_two(const std::function<void(int)>& body) { on_ranks(2, body); }
inline void look(int a) { CHECK(a == 1); }
''')
        self.put("tests/core/a_test.cpp", HEAD + '''#include <tests/support/ranks.hpp>
#include <catch2/catch_test_macros.hpp>
void look_twice(int a) { look(a); look(a); }
TEST_CASE("a") {
    std::thread one([&] { CHECK(1 == 1); });
    std::vector<std::thread> all;
    all.emplace_back([&] { REQUIRE_FALSE(1 == 2); });
    auto later = std::async(std::launch::async, [] { INFO("x"); });
    on_ranks(2, [](int rank) { FAIL("called"); });
    on_two([](int rank) { CHECK_THAT(rank, is(1)); });
    std::jthread([] { look(1); });
    on_two([](int rank) { look_twice(rank); });
    const auto body = [&](int rank) {
        SECTION("x") {}
    };
    on_ranks(size, [&](int rank) { body(rank); });
    net::loop_thread a("a"), b("b");
    b.run([] { CHECK(1 == 1); });
}
''')
        self.found("threads", *(f"tests/core/a_test.cpp:{line}: {what}" for line, what in (
            (8, "CHECK on a second thread"), (10, "REQUIRE_FALSE"), (11, "INFO"), (12, "FAIL"), (13, "CHECK_THAT"),
            (14, "look, which asserts,"), (15, "look_twice, which asserts,"), (19, "body, which asserts,"), (21, "CHECK"))))

    def test_await_clean(self):
        self.put("include/skein/net/c.hpp", HEAD + """
inline task<void> f(int n) {
    auto request = submit_request{.name = "a?b", .cpus = n};  // {a comment with co_await}
    auto t = submit(std::move(request));
    co_await std::move(t);
    auto work = [n](int a) -> task<int> { co_await g(); co_return a ? n : 2; };
    if (co_await g()) { auto y = n ? 1 : 2; }
    for (int i{0}; co_await g(); ++i) { std::vector<int> v{1, 2}; }
    co_await with([&] { return 1; });
    int z = co_await g() == 7 ? 0 : 5;
    co_await sleep_for(std::chrono::milliseconds{5});
    co_await remote<&f>.with({.cpus = 2})(7);
    co_await h(opts{});  // await-ok: trivially destructible
}
""")
        self.clean("await")

    def test_await_brace(self):
        self.put("include/skein/net/c.hpp", HEAD + "inline task<void> f() {\n    co_await submit({.name = n});\n}\n")
        self.found("await", "c.hpp:5", "braced initialiser")

    def test_await_yield(self):
        self.put("include/skein/net/c.hpp", HEAD + "inline generator<row> f() {\n    co_yield row{1};\n}\n")
        self.found("await", "c.hpp:5", "braced initialiser")

    def test_await_in_bodies(self):
        self.put("include/skein/net/detail/c.ipp", HEAD + "SKEIN_INLINE task<void> f() {\n    co_await submit({.name = n});\n}\n")
        self.put("src/net.cpp", HEAD + "task<void> f() {\n    co_await submit({.name = n});\n}\n")
        self.found("await", "c.ipp:5", "src/net.cpp:5")

    def test_await_aggregate(self):
        self.put("examples/010_x.cpp", "task<void> f() {\n    auto a =\n        agg{co_await g()};\n}\n")
        self.found("await", "010_x.cpp:3", "braced initialiser")

    def test_await_capture(self):
        self.put("tests/core/a_test.cpp", "task<void> f() {\n    co_await spawn([big] { return 1; });\n}\n")
        self.found("await", "a_test.cpp:2", "captures by value [big]")

    def test_await_conditional(self):
        self.put("include/skein/net/c.hpp", HEAD + "task<int> f(bool c) {\n    co_return c ? co_await g() : 1;\n}\n")
        self.found("await", "c.hpp:5", "conditional operator")
        self.put("include/skein/net/c.hpp", HEAD + "task<int> f(bool c) {\n    co_return co_await g(c ? x : y);\n}\n")
        self.found("await", "c.hpp:5", "conditional operator")

    def test_await_in_an_assertion(self):
        self.put("tests/core/a_test.cpp", "task<void> f() {\n    auto t = g();\n    CHECK(co_await t == 1);\n}\n")
        self.found("await", "a_test.cpp:3", "a CHECK in a statement with co_await")

    def test_await_of_other_people(self):
        self.put("mine/deep/a.cc", "task<void> f() {\n    co_await skein::remote<&g>(point{1, 2}, 3.0);\n}\n")
        self.put("mine/build/b.cc", "task<void> f() { co_await g({1}); }\n")
        self.put("fine.h", "task<void> f() { co_await g(); }\n")

        def check(*arguments):
            return subprocess.run([sys.executable, os.path.join(SCRIPTS, "check_await.py"), *arguments],
                                  capture_output=True, text=True, check=False, cwd=self.tree)
        done = check("mine", "fine.h")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout.count("\n"), 1, done.stdout)
        self.assertIn("mine/deep/a.cc:2: a braced initialiser", done.stdout)
        self.assertEqual(check("fine.h").returncode, 0)
        self.assertEqual(check("no_such_folder").returncode, 2)
        self.assertIn("no such file or folder", check("no_such_folder").stderr)
        self.assertIn("your source files", check("--help").stdout)

    def test_code_map_and_mirror_do_not_ask_for_bodies(self):
        self.put("include/skein/net/detail/b.ipp", HEAD)
        self.clean("mirror")
        said = self.run_script("code_map.py").stdout
        self.assertIn("net/b.hpp: A thing: why it is there", said)
        self.assertNotIn(".ipp", said)

    def test_docs_link_the_headers_that_they_name(self):
        self.put("include/skein/net/detail/c.hpp", HEAD)
        marks = "<!-- header links: written by scripts/code_map.py -->\n{}<!-- end of the header links -->\n"
        page = "# P\n\n[`net/b.hpp`], [`net/detail/c.hpp`] and [`net/b.hpp`] again; not `core/a.hpp`.\n\n"
        self.put("docs/page.md", page + marks.format(""))
        self.found("docs", "docs/page.md:5: the links")
        self.run_script("code_map.py", "--write")
        self.clean("docs")
        with open(os.path.join(self.tree, "docs", "page.md"), encoding="utf-8") as file:
            self.assertEqual(file.read(), page + marks.format("\n[`net/b.hpp`]: ../include/skein/net/b.hpp\n"
                                                              "[`net/detail/c.hpp`]: ../include/skein/net/detail/c.hpp\n\n"))
        self.put("docs/page.md", "[`net/gone.hpp`]\n" + marks.format(""))
        self.put("docs/other.md", "[`net/b.hpp`]\n")
        self.found("docs", "docs/page.md:1: there is no header net/gone.hpp", "docs/other.md:1: nothing is behind")

    def test_mirror_report_is_for_training(self):
        self.put("include/skein/report/line.hpp", HEAD)
        self.put("include/skein/train/trainer.hpp", HEAD)
        self.put("include/skein/sim/world.hpp", HEAD)
        self.run_script("check_mirror.py", "--write")

        def umbrella(name):
            with open(os.path.join(self.tree, "include", "skein", name), encoding="ascii") as file:
                return file.read()
        self.assertNotIn("report", umbrella("skein.hpp"))
        self.assertNotIn("sim", umbrella("skein.hpp") + umbrella("train.hpp"))
        self.assertIn("#include <skein/report.hpp>", umbrella("train.hpp"))
        self.assertIn("#include <skein/sim/world.hpp>", umbrella("sim.hpp"))

    def test_scripts_have_their_run_bit(self):
        for name in sorted(os.listdir(SCRIPTS)):
            path = os.path.join(SCRIPTS, name)
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    runs = file.read(2) == b"#!"
                self.assertTrue(not runs or os.access(path, os.X_OK), f"scripts/{name} starts with #! and cannot be run")

    def test_code_map_takes_whole_sentences(self):
        head = "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n"
        self.put("include/skein/core/a.hpp", head + "// all: waits for several tasks, e.g. three, and\n// gives their values. More.\n")
        self.put("include/skein/net/b.hpp", head + "// race: the first one wins:\n//\n//     race(a, b);\n")
        said = self.run_script("code_map.py").stdout
        self.assertIn("core/a.hpp: all: waits for several tasks, e.g. three, and gives their values\n", said)
        self.assertIn("net/b.hpp: race: the first one wins\n", said)

    def test_doors(self):
        self.clean("doors")
        self.put("include/skein/rt/c.hpp", HEAD + "// std::thread in a comment\ninline void f() { std::this_thread::sleep_for(t); }\n"
                 "inline int g() { std::random_device d; return std::rand(); }\n"
                 "inline auto h() { return std::chrono::steady_clock::now(); }\ninline void i(asio::io_context&);\n")
        self.put("include/skein/rt/detail/c.ipp", HEAD + "SKEIN_INLINE int f() { return ::socketpair(a, b, 0, c); }\nusing j = nlohmann::json;\n")
        self.found("doors", "c.ipp:4: ::socketpair(", "c.ipp:5: nlohmann::")
        self.found("doors", "c.hpp:5: this_thread::sleep_for", "c.hpp:6: random_device", "c.hpp:7: steady_clock::now", "c.hpp:8: asio::")

    def test_single_include(self):
        self.run_script("amalgamate.py")
        self.clean("single_include")
        self.put("include/skein/core/a.hpp", HEAD + "#include <skein/core/config.hpp>\nint new_thing();\n")
        self.found("single_include", "single_include/skein/skein.hpp:1")

    def test_single_include_names_the_file_of_every_line(self):
        self.put("include/skein/core/z.hpp", HEAD + "int z;\n")
        self.put("include/skein/core/y.hpp", HEAD + "int y;\n")
        self.put("include/skein/core/a.hpp", HEAD + "int before;\n#include <skein/core/z.hpp>\n#include <skein/core/y.hpp>\n\nint after;\n")
        self.put("include/skein/skein.hpp", HEAD + "#include <skein/core/a.hpp>\n")
        self.run_script("amalgamate.py")
        with open(os.path.join(self.tree, "single_include", "skein", "skein.hpp"), encoding="ascii") as file:
            parts = [part.split("\n", 1) for part in file.read().split("\n// ======== ")[1:]]
        stands_under = {line: name for name, text in parts for line in text.splitlines() if line.startswith("int ")}
        self.assertEqual(stands_under, {"int before;": "skein/core/a.hpp", "int z;": "skein/core/z.hpp", "int y;": "skein/core/y.hpp",
                                        "int after;": "skein/core/a.hpp, continued"})

    def test_single_include_refuses_conditions(self):
        self.put("include/skein/core/a.hpp", HEAD + "#if defined(X)\n#include <skein/core/z.hpp>\n#endif\n")
        self.put("include/skein/core/z.hpp", HEAD)
        self.put("include/skein/core.hpp", HEAD + "#include <skein/core/a.hpp>\n")
        self.found("single_include", "a.hpp:5", "under #if")

    @unittest.skipUnless(shutil.which("clang++-19"), "no clang++-19")
    def test_modules(self):
        self.put("include/skein/core/a.hpp", HEAD + "#include <skein/core/config.hpp>\nnamespace skein {\ntemplate <class T>\nstruct box {\n"
                 "    int inside = 0;\n    friend bool operator==(const box&, const box&) = default;\n};\n"
                 "template <auto F>\ninline constexpr int variable = 1;\nvoid declared(int a);\nnamespace detail {\nint hidden();\n}\n} // namespace skein\n")
        self.put("include/skein/net/b.hpp", HEAD + "#include <skein/core/a.hpp>\nnamespace skein::net {\nstruct unlike {};\n"
                 "bool operator<(unlike, unlike);\nenum class kind { one };\n} // namespace skein::net\n")
        self.found("modules", "modules/skein.cppm:1: is missing")
        self.run_script("check_modules.py", "--write")
        self.clean("modules")
        with open(os.path.join(self.tree, "modules", "skein.cppm"), encoding="ascii") as file:
            text = file.read()
        self.assertEqual([line for line in text.splitlines() if line.startswith("using skein")],
                         ["using skein::box;", "using skein::declared;", "using skein::variable;", "using skein::net::kind;",
                          "using skein::net::operator<;", "using skein::net::unlike;"])
        self.put("modules/skein.cppm", text.replace("using skein::variable;", "using skein::gone;"))
        self.found("modules", "skein::variable is public and not exported", "skein::gone is exported and not public")
        self.assertNotIn("skein::box", self.run_script("check_modules.py").stdout)

    def test_docs(self):
        self.put("examples/010_x.cpp", "// SPDX\nint main() {\n    // [tag]\n    int a;\n    // [/tag]\n}\n")
        self.put("examples/010_x.expected", "")
        self.put("README.md", "<!-- snippet: examples/010_x.cpp#tag -->\n```cpp\nint a;\n```\n")
        self.clean("docs")
        self.put("README.md", "<!-- snippet: examples/010_x.cpp#tag -->\n```cpp\nint b;\n```\n\n```cpp\nint c;\n```\n")
        self.put("examples/020_y.cpp", "")
        self.found("docs", "README.md:2", "not in examples/010_x.cpp", "README.md:6", "020_y.expected")

    def test_docs_show_regions_that_exist(self):
        self.put("examples/010_x.cpp", "// SPDX\n// [tag]\nint a;\n// [/tag]\n")
        self.put("examples/010_x.expected", "")
        page = "# P\n\n<!-- snippet: examples/010_x.cpp#tag -->\n```cpp\nint a;\n```\n"
        self.put("docs/page.md", page)
        self.clean("docs")
        self.put("docs/page.md", page.replace("#tag", "#lost") + page.replace("010_x", "020_y") + "```{literalinclude} ../examples/010_x.cpp\n```\n")
        self.found("docs", "docs/page.md:4: examples/010_x.cpp has no region // [lost]", "docs/page.md:10: examples/020_y.cpp does not exist",
                   "docs/page.md:13: literalinclude")

    def test_docs_are_written_from_their_files(self):
        self.put("examples/010_x.cpp", "// SPDX\n// A program.\n#include <a>\nint main() {\n    // [out]\n    if (a) {\n"
                 "        // [in]\n        b();\n        // [/in]\n    }\n    // [/out]\n}\n")
        self.put("examples/010_x.expected", "one\ntwo\nthree\n")
        self.put("examples/run.sh", "#!/bin/sh\n# [go]\nrun\n# [/go]\n")

        def block(of, language, text=""):
            return f"<!-- snippet: examples/{of} -->\n```{language}\n{text}```\n\n"

        def page(*texts):
            names = ("010_x.cpp#out", "cpp"), ("010_x.cpp#in", "cpp"), ("010_x.expected:2-3", "text"), ("010_x.expected:1", "text"), ("run.sh#go", "sh")
            return "".join(block(*name, text) for name, text in zip(names, texts))
        self.put("docs/page.md", page("", "old();\n", "two\n", "", "") + "said\n")
        self.put("README.md", block("010_x.cpp", "cpp"))
        self.found("docs", "README.md:2", "docs/page.md:2", "docs/page.md:6", "docs/page.md:11")
        self.assertEqual(self.run_script("snippets.py").returncode, 0)
        self.clean("docs")
        with open(os.path.join(self.tree, "docs", "page.md"), encoding="utf-8") as file:
            self.assertEqual(file.read(), page("if (a) {\n    b();\n}\n", "b();\n", "two\nthree\n", "one\n", "run\n") + "said\n")
        with open(os.path.join(self.tree, "README.md"), encoding="utf-8") as file:
            self.assertEqual(file.read(), block("010_x.cpp", "cpp", "#include <a>\nint main() {\n    if (a) {\n        b();\n    }\n}\n"))

    def test_docs_show_output_that_the_test_of_the_example_allows(self):
        self.put("examples/010_x.cpp", "")
        self.put("examples/010_x.expected", "#args: --workers 2\n...\n~loss [0-9.]+\nend\n")
        page = "<!-- output: examples/010_x.expected -->\n```text\nstep 1\nloss 0.5\nend\n```\n"
        self.put("docs/page.md", page)
        self.clean("docs")
        self.put("docs/page.md", page.replace("0.5", "nan"))
        self.found("docs", "docs/page.md:2: examples/010_x.expected does not allow this output")
        self.put("docs/page.md", page.replace(".expected", ".expected:9").replace("output", "snippet"))
        self.found("docs", "docs/page.md:2: examples/010_x.expected has 4 lines")

    def test_comments(self):
        declared = "void send(int kind, bytes body, flags f = flags(1, 2));\nstruct maker { template <class... T> int make(T... v); };\n"
        head = "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n// A thing.\n//\n"
        self.put("include/skein/net/b.hpp", head + "//     c.send(7, body);            // c.wrong(1)\n//     auto m = net::maker(x).make(1, 2, 3);\n"
                 "//     use(m); co_await socket.async_read(1); std::sort(a);\n//     send_it({.kind = 1}, \"a.b(c)\");\n\n" + declared)
        self.clean("comments")
        self.put("include/skein/net/b.hpp", head + "//     c.send(std::move(body));\n//     c.post(1);\n//     net::made<int>(2);\n//\n// c.prose(1)\n\n" + declared)
        self.found("comments", "b.hpp:5: the comment calls send with 1 arguments", "b.hpp:6: the comment uses post", "b.hpp:7: the comment uses made")
        self.assertNotIn("prose", self.run_script("check_comments.py").stdout)

    @unittest.skipUnless(tool("codespell"), "no codespell: scripts/setup --test installs it")
    def test_spelling(self):
        self.clean("spelling")
        wrong = "rec" + "ieve"
        self.put("docs/page.md", f"# P\n\nWorkers {wrong} work, and CAF has statics.\n")
        self.put("tests/core/a_test.cpp", "// SPDX-License-Identifier: Apache-2.0\n" + f'auto text = "they {wrong} it";\n')
        self.put("scripts/run", f"#!/bin/sh\n# {wrong}\n")
        self.put("tests/fuzz/corpus/x", wrong)
        self.found("spelling", f"docs/page.md:3: {wrong} is misspelled; write receive", f"a_test.cpp:2: {wrong}", f"scripts/run:2: {wrong}")
        said = self.run_script("check_spelling.py").stdout
        self.assertEqual(len(said.splitlines()), 3, said)

    def test_a_missing_tool_fails_in_ci_alone(self):
        nowhere = {"PATH": "/nowhere", "HOME": self.tree}
        for more, code, text in (({}, 0, "skipped: codespell is not here"), ({"CI": "true"}, 1, "run scripts/setup --test")):
            done = subprocess.run([sys.executable, os.path.join(SCRIPTS, "check_spelling.py"), self.tree], env={**nowhere, **more},
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            self.assertIn(text, done.stdout)

    def test_text(self):
        self.clean("text")
        place = "/" + "home/somebody/x"
        self.put("include/skein/core/a.hpp", HEAD + f'auto p = "{place}";\nint \u00fc;\n// TO' + "DO later\nint b; \n")
        self.put("include/skein/core/detail/a.ipp", "int x;\t\n")
        self.found("text", "a.hpp:4: a path of one machine", "a.hpp:5: non-ASCII", "a.hpp:6: TO" + "DO without", "a.hpp:7: white space",
                   "a.ipp:1: a tab")

    def test_licences(self):
        os.makedirs(os.path.join(self.tree, "LICENSES"))
        shutil.copy(os.path.join(SOURCE, "REUSE.toml"), self.tree)
        shutil.copy(os.path.join(SOURCE, "LICENSES", "Apache-2.0.txt"), os.path.join(self.tree, "LICENSES"))
        self.put("docs/page.md", "a page\n")
        self.clean("licences")
        licence = "// SPDX-License-" + "Identifier: "
        self.put("include/skein/core/detail/a.ipp", "int x;\n")
        self.put("cmake/x.cmake", "message(x)\n")
        self.put("examples/010_late.cpp", "int a;\n\n\n" + licence + "Apache-2.0\n")
        self.found("licences", "a.ipp:1: no line SPDX", "x.cmake:1: no line SPDX", "010_late.cpp:1: no line SPDX")
        if not tool("reuse"):
            self.skipTest("no reuse: scripts/setup --test installs it")
        self.put("scripts/run.sh", "#!/bin/sh\n")
        self.put("examples/020_other.cpp", licence + "MIT\n")
        self.put("apps/odd.cpp", licence + "Apache\n")
        self.found("licences", "run.sh:1: no license identifier", "020_other.cpp:1: missing license 'MIT'", "odd.cpp:1: ")

    @unittest.skipUnless(shutil.which("clang-tidy-19") and shutil.which("git"), "no clang-tidy-19")
    def test_tidy(self):
        def commit(message):
            subprocess.run(["git", "-C", self.tree, "add", "-A"], check=True)
            subprocess.run(["git", "-C", self.tree, "-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", message], check=True)
        shutil.copy(os.path.join(SOURCE, ".clang-tidy"), self.tree)
        old = HEAD + "inline int Old_Name() { return 1; }\n"
        self.put("include/skein/core/a.hpp", old)
        self.put("include/skein/core/old.hpp", old)
        self.put("src/core.cpp", "#include <skein/core/a.hpp>\n#include <skein/core/old.hpp>\n#include <skein/core/detail/x.ipp>\n")
        self.put("include/skein/core/detail/x.ipp", HEAD)
        subprocess.run(["git", "init", "-q", "-b", "main", self.tree], check=True)
        commit("first")
        subprocess.run(["git", "-C", self.tree, "checkout", "-q", "-b", "other"], check=True)
        self.put("include/skein/core/a.hpp", HEAD + "inline int New_Name() { return 1; }\n")
        commit("second")
        self.put("include/skein/core/detail/x.ipp", HEAD + "inline bool Full(const char* p) { return p == 0; }\n")
        self.put("include/skein/wire/c.hpp", HEAD + "template <class T>\ninline T Template_Name() { return 1; }\n")
        self.put("tests/core/new_test.cpp", "int main() { int Wrong = 0; return Wrong; }\n")
        self.found("tidy", "include/skein/core/a.hpp:4: invalid case style for function 'New_Name'", "x.ipp:4: invalid case style",
                   "wire/c.hpp:5: invalid case style",
                   "new_test.cpp:1: invalid case style for variable 'Wrong'")
        self.assertNotIn("Old_Name", self.run_script("check_tidy.py").stdout)

    @unittest.skipUnless(shutil.which("clang-format-19"), "no clang-format-19")
    def test_format(self):
        shutil.copy(os.path.join(SOURCE, ".clang-format"), self.tree)
        self.put("include/skein/core/a.hpp", HEAD + "inline int  f( ){return 1 ;}\n")
        self.put("include/skein/core/detail/a.ipp", HEAD + "inline int  g( ){return 1 ;}\n")
        self.found("format", "a.hpp:1: is not formatted", "a.ipp:1: is not formatted")


if __name__ == "__main__":
    unittest.main(verbosity=1)
