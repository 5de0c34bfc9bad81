// SPDX-License-Identifier: Apache-2.0
// The interface can be met by a few lines, and used through its base.
#include <skein/spmd/rendezvous.hpp>

#include <catch2/catch_test_macros.hpp>

#include <memory>
#include <type_traits>

using namespace skein;
using namespace skein::spmd;

namespace {

/// A world of one: what it gives is what it gets back.
class alone final : public spmd::rendezvous {
public:
    int rank() const override { return 0; }
    int world_size() const override { return 1; }
    int local_rank() const override { return 0; }
    int local_size() const override { return 1; }
    int generation() const override { return 0; }
    std::string host() const override { return "here"; }
    std::vector<byte_buffer> exchange(std::string_view, byte_span mine) override {
        return {to_buffer(mine)};
    }
    net::token secret() const override { return {}; }
    spmd::subscription on_lost(loss_listeners::listener lost) override {
        return losses_.add(std::move(lost));
    }
    void lose() { losses_.tell(0, error(errc::peer_lost, "gone")); }

private:
    spmd::loss_listeners losses_;
};

} // namespace

TEST_CASE("a rendezvous is used through its interface") {
    auto made = std::make_unique<alone>();
    spmd::rendezvous& world = *made;
    const auto all = world.exchange("key", as_bytes(std::string_view("blob")));
    REQUIRE(all.size() == 1);
    CHECK(to_string(all[0]) == "blob");
    int told = 0;
    const auto watching = world.on_lost([&](int, const error&) { ++told; });
    const auto watching_too = world.on_lost([&](int, const error&) { ++told; });
    made->lose();
    CHECK(told == 2);
    STATIC_CHECK_FALSE(std::is_copy_constructible_v<alone>);
}
