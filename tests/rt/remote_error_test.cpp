// SPDX-License-Identifier: Apache-2.0
#include <skein/rt/detail/message.hpp>
#include <skein/rt/remote_error.hpp>

#include <stdexcept>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

namespace {

rt::failure through_the_wire(std::exception_ptr thrown) {
    rt::function_record fn;
    fn.name = "app::f(int)";
    const rt::detail::process_name here{"worker-1", "node-a", 77};
    wire::writer out;
    rt::detail::encode_failure(out, rt::detail::failure_of(thrown, fn, here));
    return rt::detail::decode_failure(out.bytes());
}

} // namespace

TEST_CASE("a foreign exception arrives with type, text and place", "[rt][remote_error]") {
    const auto got = through_the_wire(std::make_exception_ptr(std::out_of_range("row 7 of 5")));
    try {
        got.raise();
    } catch (const remote_error& e) {
        CHECK(e.code() == errc::remote_exception);
        CHECK(e.remote_type() == "std::out_of_range");
        CHECK(e.remote_text() == "row 7 of 5");
        CHECK(e.worker() == "worker-1");
        CHECK(e.host() == "node-a");
        CHECK(e.pid() == 77);
        CHECK(std::string(e.what()) ==
              "app::f(int) on worker-1 (pid 77 at node-a): std::out_of_range: row 7 of 5");
    }
}

TEST_CASE("a skein::error keeps its code, cause and hint", "[rt][remote_error]") {
    const auto got = through_the_wire(std::make_exception_ptr(
        error(errc::disk_full, "no room").with_cause("quota").with_hint("delete")));
    CHECK(got.what.code() == errc::disk_full);
    CHECK(got.what.text() == "no room");
    CHECK(got.what.cause() == "quota");
    CHECK(got.what.hint() == "delete");
    CHECK(got.what.where() == "app::f(int) on worker-1 (pid 77 at node-a)");
    CHECK(got.from->type == "skein::error");
}

TEST_CASE("something that is no exception class arrives as its type", "[rt][remote_error]") {
    const auto got = through_the_wire(std::make_exception_ptr(7));
    CHECK(got.what.code() == errc::remote_exception);
    CHECK(got.from->type == "int");
}

TEST_CASE("a very long text travels cut, and says so", "[rt][remote_error]") {
    const std::string book(std::size_t{4} << 20, 'x');
    const auto foreign = through_the_wire(std::make_exception_ptr(std::runtime_error(book)));
    const auto own = through_the_wire(
        std::make_exception_ptr(error(errc::io, book).with_cause(book).with_hint("the end")));
    for (const auto* got : {&foreign, &own}) {
        const std::string shown = got->what.what();
        CHECK(shown.size() < std::size_t{256} << 10);
        CHECK(shown.find("bytes are left out") != shown.npos);
        CHECK(got->from->text.size() < std::size_t{65} << 10);
    }
    CHECK(own.what.hint() == "the end");
}

TEST_CASE("a failure that cannot be read is malformed, not a crash", "[rt][remote_error]") {
    wire::writer out;
    rt::detail::encode_failure(out, {error(errc::io, "text"), nullptr});
    for (std::size_t n = 0; n < out.size(); ++n)
        CHECK(rt::detail::decode_failure(out.bytes().first(n)).what.code() == errc::malformed);
}
