// SPDX-License-Identifier: Apache-2.0
#include <skein/dist/stub.hpp>

#include <skein/net/real_loop.hpp>

#include <catch2/catch_test_macros.hpp>

#include <memory>
#include <vector>

using namespace skein;
using namespace skein::dist;

TEST_CASE("a world of one gives its own values back") {
    net::real_loop loop;
    const std::unique_ptr<communicator> owner = std::make_unique<stub_communicator>();
    communicator& comm = *owner;
    REQUIRE(comm.world_size() == 1);
    std::vector<float> in{1, 2, 3}, out(3);
    const std::size_t counts[] = {3};
    loop.run(comm.all_reduce(view_of(std::span(in)), reduce_op::mean));
    CHECK(in == std::vector<float>{1, 2, 3});
    loop.run(comm.reduce_scatter(view_of(std::span(in)), view_of(std::span(out)), reduce_op::sum));
    CHECK(out == in);
    loop.run(comm.all_gather_v(view_of(std::span(in)), view_of(std::span(out)), counts));
    loop.run(comm.broadcast(view_of(std::span(in)), 0));
    std::vector<bf16_t> halves{to_bf16(1.5f), to_bf16(-2), to_bf16(3)};
    loop.run(comm.reduce_scatter_v(view_of(std::span(halves)), counts, view_of(std::span(out)),
                                   reduce_op::mean));
    CHECK(out == std::vector<float>{1.5f, -2, 3});
    loop.run(comm.barrier());
    loop.run(comm.close());
}

TEST_CASE("an aborted world of one is aborted too") {
    net::real_loop loop;
    stub_communicator comm;
    comm.abort(error(errc::aborted, "enough"));
    CHECK_THROWS_AS(loop.run(comm.barrier()), error);
}
