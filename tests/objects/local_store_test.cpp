// SPDX-License-Identifier: Apache-2.0
// The store of one host: sizes, and its thread, which is there from the first object on.
#include <skein/objects/local_store.hpp>

#include <skein/core/timeout.hpp>
#include <skein/net/real_loop.hpp>

#include <cstring>
#include <utility>

#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>

namespace local_store_test {

using namespace skein;
using namespace std::chrono_literals;

TEST_CASE("sizes of stores are bytes with a unit", "[objects][local_store]") {
    using objects::parse_store_bytes;
    CHECK(parse_store_bytes("0") == 0);
    CHECK(parse_store_bytes("2GiB") == std::uint64_t{2} << 30);
    CHECK(parse_store_bytes("500MB") == 500'000'000);
    CHECK(parse_store_bytes("1048576") == 1'048'576);
    for (const char* bad : {"", "GiB", "2 GiB", "-1", "2gib", "1KiB", "99999999999TiB", "1.5GiB"}) {
        INFO(bad);
        CHECK_THROWS_AS(parse_store_bytes(bad), error);
    }
    CHECK(objects::default_store_bytes() > 0);
}

TEST_CASE("there is no thread and no page before the first object", "[objects][local_store]") {
    net::real_loop loop;
    objects::local_store store(std::uint64_t{64} << 20);
    const auto link = store.link_for_child();
    const auto& files = link.files;
    REQUIRE(files.size() == 2);
    struct stat info{};
    REQUIRE(::fstat(files[0]->get(), &info) == 0);
    CHECK(info.st_size == 64 << 20);
    CHECK(info.st_blocks == 0);
    CHECK(!store.has_started());

    auto own = store.client(loop, objects::process_id(1));
    CHECK(!store.has_started());
    auto use = [](objects::local_store* of, objects::store_client* by) -> task<void> {
        auto creating = by->create(100'000, 1s);
        auto made = co_await creating;
        REQUIRE(made);
        CHECK(of->has_started());
        std::memset(made->bytes().data(), 6, made->bytes().size());
        auto sealing = by->seal(std::move(*made));
        const auto one = co_await sealing;
        CHECK(objects::read_now(one)->bytes()[99'999] == std::byte{6});
        auto leaving = by->close();
        co_await leaving;
    };
    loop.run(with_timeout(use(&store, own.get()), 60s));
}

} // namespace local_store_test
