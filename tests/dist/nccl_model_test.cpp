// SPDX-License-Identifier: Apache-2.0
// label: cuda
// The communicator called nccl: chosen by name, made over a rendezvous.
#include "ranks.hpp"

#include <skein/dist/nccl_model.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/sim/device_model.hpp>

#include "support/device_buffers.hpp"
#include "support/device_libraries.hpp"

#include <catch2/catch_test_macros.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::dist;
using skein::sim::local_world;

namespace nccl_model_test {

/// What ranks of a test bring, by their number; each is a process of its own.
struct places {
    explicit places(int devices)
        : model({.devices = devices}), domains(static_cast<std::size_t>(devices) + 1) {
        for (auto& domain : domains)
            domain = std::make_shared<nccl_domain>(model.cuda(), model.nccl(), model.math());
    }
    [[nodiscard]] comm_model made(std::map<int, int> devices = {}) {
        return nccl_model([this, devices](const comm_site& site) {
            const int rank = site.world.rank();
            nccl_place place;
            place.domain = domains[static_cast<std::size_t>(rank)];
            const auto other = devices.find(rank);
            place.where.device = other != devices.end() ? other->second : rank;
            require_device(place.domain->cuda(), place.where.device);
            return place;
        });
    }

    sim::device_model model;
    std::vector<std::shared_ptr<nccl_domain>> domains;
};

/// One communicator for each rank, as make_comm_thread makes it of a model that is in no list.
ranks::outcome with_model(const comm_model& model, int n,
                          const std::function<void(comm_thread&, int)>& body) {
    local_world world(n);
    return ranks::each(n, [&](int r) {
        comm_options options;
        options.model = "nccl";
        auto worker = std::make_unique<net::loop_thread>("test-nccl");
        comm_site site{.world = world.at(r), .options = options, .worker = *worker, .where = {}};
        site.where = placement::from(std::vector<std::string>(static_cast<std::size_t>(n), "a"), r);
        site.key = "test";
        auto made = model.make(site);
        comm_thread comm(std::move(worker), std::move(made));
        body(comm, r);
    });
}

} // namespace nccl_model_test

using namespace nccl_model_test;

TEST_CASE("ranks of a rendezvous reduce over NCCL on threads of their own") {
    places at(3);
    const auto errors = with_model(at.made(), 3, [&](comm_thread& comm, int r) {
        const auto cuda = at.model.cuda();
        cuda_check(cuda, cuda.set_device(r), "a device current");
        // The work stream is the device's default one.
        test::device_vector<float> io(cuda, nullptr, {1.0f, static_cast<float>(r)});
        comm.all_reduce(io.view(), reduce_op::mean).wait();
        if (io.read() != std::vector<float>{1.0f, 1.0f}) throw error(errc::internal, "values");
        std::vector<std::size_t> counts{2, 0, 1};
        test::device_vector<std::int64_t> parts(cuda, nullptr, {1, 2, 3});
        comm.reduce_scatter_v(parts.view(), counts, reduce_op::sum).wait();
        const auto got = parts.read();
        if (r == 0 && (got[0] != 3 || got[1] != 6)) throw error(errc::internal, "part 0");
        if (r == 2 && got[2] != 9) throw error(errc::internal, "part 2");
        comm.barrier().wait();
        if (comm.name() != "nccl x3 and shm x3") throw error(errc::internal, comm.name());
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
    CHECK(at.model.complaints() == std::vector<std::string>{});
}

TEST_CASE("a rank's device need not have its number") {
    places at(2);
    const auto errors = with_model(at.made({{0, 1}, {1, 0}}), 2, [&](comm_thread& comm, int r) {
        comm.barrier().wait();
        const auto cuda = at.model.cuda();
        cuda_check(cuda, cuda.set_device(1 - r), "a device current");
        test::device_vector<float> io(cuda, nullptr, {static_cast<float>(r + 1)});
        comm.all_reduce(io.view(), reduce_op::sum).wait();
        if (io.read() != std::vector<float>{3.0f}) throw error(errc::internal, "values");
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
    CHECK(at.model.complaints() == std::vector<std::string>{});
}

TEST_CASE("two ranks on one device, and a rank without one, are refused on all") {
    {
        places at(3);
        const auto errors = with_model(at.made({{2, 0}}), 3, [](comm_thread&, int) {});
        for (const auto& e : errors) {
            REQUIRE(e);
            CHECK(e->code() == errc::invalid_argument);
            CHECK(std::string(e->what()).find("rank 0 and rank 2 are both on cuda:0") !=
                  std::string::npos);
        }
    }
    places at(2);
    const auto errors = with_model(at.made({{1, 5}}), 2, [](comm_thread&, int) {});
    REQUIRE(errors[0]);
    CHECK(errors[0]->code() == errc::refused);
    CHECK(std::string(errors[0]->what()).find("no device cuda:5: this process sees 2") !=
          std::string::npos);
    REQUIRE(errors[1]);
    CHECK(errors[1]->code() == errc::invalid_argument);
    CHECK(at.model.complaints() == std::vector<std::string>{});
}

TEST_CASE("unlike versions of NCCL are refused by both numbers") {
    places at(2);
    auto older = at.model.nccl();
    older.version_number = 21903;
    at.domains[1] = std::make_shared<nccl_domain>(at.model.cuda(), older);
    const auto errors = with_model(at.made(), 2, [](comm_thread&, int) {});
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == errc::mismatch);
        CHECK(std::string(e->what()).find("rank 1 has NCCL 2.19.3, rank 0 has 2.28.9") !=
              std::string::npos);
    }
}

TEST_CASE("the model called nccl is asked for by name, and says what this machine lacks") {
    static const bool added = [] {
        add_nccl_model();
        return true;
    }();
    REQUIRE(added);
    const auto automatic = ranks::group({"a", "a"}, "automatic", [](ranks::rank_view& c) {
        if (c.comm.name() != "shm x2") throw error(errc::internal, c.comm.name());
    });
    CHECK(ranks::first_error(automatic).empty());
    const auto real = test::real_devices::look();
    if (real.why_not.empty()) SKIP("this machine has a device");
    const auto errors = ranks::group({"a", "a"}, "nccl", [](ranks::rank_view&) {});
    for (const auto& e : errors) {
        REQUIRE(e);
        INFO(e->what());
        CHECK((e->code() == errc::not_supported || e->code() == errc::not_found ||
               e->code() == errc::refused));
    }
}
