// SPDX-License-Identifier: Apache-2.0
// What only shared memory has: real processes, their death, and nothing left behind. The laws of
// collectives are in communicator_test.cpp.
#include <skein/dist/shm.hpp>

#include <skein/net/real_loop.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace skein;
using namespace skein::dist;
using namespace std::chrono_literals;

namespace {

/// A forked rank 1 and this process as rank 0, joined to one segment.
class pair_of_processes {
public:
    /// child(comm) runs in the other process, which then ends with _exit.
    template <class Child>
    explicit pair_of_processes(Child child, shm_options pieces = {},
                               collective_options limits = {}) {
        int ready[2], go[2];
        REQUIRE(::pipe(ready) == 0);
        REQUIRE(::pipe(go) == 0);
        auto segment = shared_memory::create(shm_communicator::segment_bytes(2, pieces));
        const std::string path = segment.path();
        pid_ = ::fork();
        REQUIRE(pid_ >= 0);
        if (pid_ == 0) {
            int code = 1;
            try {
                auto mine = shared_memory::attach(path, segment.bytes());
                shm_communicator comm(std::move(mine), 1, 2, {}, pieces, limits);
                char c = 'r';
                if (::write(ready[1], &c, 1) == 1 && ::read(go[0], &c, 1) == 1) {
                    comm.join();
                    net::real_loop loop;
                    code = child(comm, loop);
                }
            } catch (const std::exception&) {
                code = 2;
            }
            ::_exit(code);
        }
        comm_ = std::make_unique<shm_communicator>(std::move(segment), 0, 2, std::vector<int>{},
                                                   pieces, limits);
        char c = 'g';
        REQUIRE(::read(ready[0], &c, 1) == 1);
        REQUIRE(::write(go[1], &c, 1) == 1);
        comm_->join();
        for (const int fd : {ready[0], ready[1], go[0], go[1]}) ::close(fd);
    }
    ~pair_of_processes() {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
        }
    }
    shm_communicator& comm() { return *comm_; }
    [[nodiscard]] int pid() const { return pid_; }
    int wait() {
        int status = 0;
        ::waitpid(std::exchange(pid_, -1), &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

private:
    int pid_ = -1;
    std::unique_ptr<shm_communicator> comm_;
};

} // namespace

TEST_CASE("two processes reduce through memory that has no name") {
    pair_of_processes two([](shm_communicator& comm, net::real_loop& loop) {
        std::vector<float> v(300000, 2.0f);
        for (int i = 0; i < 5; ++i)
            loop.run(comm.all_reduce(view_of(std::span(v)), reduce_op::mean));
        loop.run(comm.close());
        return v[299999] == 1.5f ? 0 : 3;
    });
    net::real_loop loop;
    std::vector<float> v(300000, 1.0f);
    for (int i = 0; i < 5; ++i)
        loop.run(two.comm().all_reduce(view_of(std::span(v)), reduce_op::mean));
    loop.run(two.comm().close());
    CHECK(v[0] == 1.5f);
    CHECK(two.wait() == 0);
}

TEST_CASE("a killed process is noticed within a moment and named") {
    const int after = GENERATE(0, 1, 7, 30);
    pair_of_processes two([](shm_communicator& comm, net::real_loop& loop) {
        std::vector<float> v(100000, 2.0f);
        for (;;) loop.run(comm.all_reduce(view_of(std::span(v)), reduce_op::sum));
        return 0;
    });
    net::real_loop loop;
    std::vector<float> v(100000, 1.0f);
    for (int i = 0; i < after; ++i)
        loop.run(two.comm().all_reduce(view_of(std::span(v)), reduce_op::sum));
    ::kill(two.pid(), SIGKILL);
    const auto begin = std::chrono::steady_clock::now();
    try {
        for (;;) loop.run(two.comm().all_reduce(view_of(std::span(v)), reduce_op::sum));
    } catch (const error& e) {
        INFO(e.what());
        CHECK(e.code() == errc::peer_lost);
        CHECK(std::string(e.what()).find("rank 1 failed in all_reduce") != std::string::npos);
    }
    CHECK(std::chrono::steady_clock::now() - begin <
          10s); // generous: the default deadline is minutes
}

TEST_CASE("a process that is killed in memory of the group is noticed, and leaves nothing behind") {
    const auto reduce_for_ever = [](shm_communicator& comm, net::real_loop& loop) {
        const auto memory = loop.run(comm.allocate(std::size_t{1} << 22, memory_kind::own));
        const std::span v(reinterpret_cast<float*>(memory->data()), std::size_t{1} << 20);
        for (;;) loop.run(comm.all_reduce(view_of(v), reduce_op::max));
        return 0;
    };
    pair_of_processes two(reduce_for_ever);
    net::real_loop loop;
    const auto memory = loop.run(two.comm().allocate(std::size_t{1} << 22, memory_kind::own));
    const std::span v(reinterpret_cast<float*>(memory->data()), std::size_t{1} << 20);
    for (int i = 0; i < 5; ++i) loop.run(two.comm().all_reduce(view_of(v), reduce_op::max));
    ::kill(two.pid(), SIGKILL);
    try {
        for (;;) loop.run(two.comm().all_reduce(view_of(v), reduce_op::max));
    } catch (const error& e) {
        INFO(e.what());
        CHECK(e.code() == errc::peer_lost);
        CHECK(std::string(e.what()).find("rank 1 failed in all_reduce") != std::string::npos);
    }
    v[0] = 5.0f; // its own mapping stays
    CHECK(v[0] == 5.0f);
}

TEST_CASE("one process that cannot map memory is the error of both") {
    pair_of_processes two([](shm_communicator& comm, net::real_loop& loop) {
        rlimit none{};
        ::getrlimit(RLIMIT_NOFILE, &none);
        none.rlim_cur = 0;
        ::setrlimit(RLIMIT_NOFILE, &none);
        try {
            (void)loop.run(comm.allocate(4096, memory_kind::own));
        } catch (const error& e) {
            return e.code() == errc::exhausted ? 0 : 4;
        }
        return 5;
    });
    net::real_loop loop;
    try {
        (void)loop.run(two.comm().allocate(4096, memory_kind::own));
        FAIL("it was made");
    } catch (const error& e) {
        INFO(e.what());
        CHECK(e.code() == errc::exhausted);
        CHECK(std::string(e.what()).find("rank 1 failed in allocate") != std::string::npos);
    }
    CHECK(two.wait() == 0);
}

TEST_CASE("a stopped process is named at the deadline, and sees the error when it goes on") {
    collective_options limits;
    limits.deadline = 200ms;
    pair_of_processes two(
        [](shm_communicator& comm, net::real_loop& loop) {
            std::vector<float> v(1000, 2.0f);
            try {
                for (;;) loop.run(comm.all_reduce(view_of(std::span(v)), reduce_op::sum));
            } catch (const error& e) {
                return e.code() == errc::timeout ? 0 : 4;
            }
            return 5;
        },
        {}, limits);
    net::real_loop loop;
    std::vector<float> v(1000, 1.0f);
    loop.run(two.comm().all_reduce(view_of(std::span(v)), reduce_op::sum));
    ::kill(two.pid(), SIGSTOP);
    try {
        for (;;) loop.run(two.comm().all_reduce(view_of(std::span(v)), reduce_op::sum));
    } catch (const error& e) {
        INFO(e.what());
        CHECK(e.code() == errc::timeout);
        CHECK(std::string(e.what()).find("rank 1 failed in all_reduce") != std::string::npos);
    }
    ::kill(two.pid(), SIGCONT);
    CHECK(two.wait() == 0);
}

TEST_CASE("steps of collectives go on when the counters wrap around") {
    CHECK(dist::detail::at_least(3, 2));
    CHECK(dist::detail::at_least(2, 2));
    CHECK(!dist::detail::at_least(1, 2));
    CHECK(dist::detail::at_least(1, 0xffffffffu)); // 2 steps later
    CHECK(!dist::detail::at_least(0xffffffffu, 1));

    shm_options pieces;
    pieces.chunk_bytes = 4096;
    pieces.small_bytes = 4096;
    pieces.first_step =
        0xffffffffu - 20; // some way before, so that the middle of a collective wraps
    const auto rounds = [](shm_communicator& comm, net::real_loop& loop) {
        for (int i = 0; i < 4; ++i) {
            std::vector<float> v(10000, comm.rank() == 0 ? 1.0f : 2.0f);
            loop.run(comm.all_reduce(view_of(std::span(v)), reduce_op::sum));
            if (v.front() != 3.0f || v.back() != 3.0f) return false;
            std::vector<float> gathered(20000);
            loop.run(comm.all_gather(view_of(std::span(v)), view_of(std::span(gathered))));
            if (gathered.front() != 3.0f || gathered.back() != 3.0f) return false;
        }
        loop.run(comm.close());
        return true;
    };
    pair_of_processes two(
        [&](shm_communicator& comm, net::real_loop& loop) { return rounds(comm, loop) ? 0 : 3; },
        pieces);
    net::real_loop loop;
    CHECK(rounds(two.comm(), loop));
    CHECK(two.wait() == 0);
}

TEST_CASE("a rank that does its part, leaves and ends is not blamed by one that still looks") {
    for (int i = 0; i < 50; ++i) {
        pair_of_processes two([](shm_communicator& comm, net::real_loop& loop) {
            loop.run(comm.barrier());
            loop.run(comm.close());
            return 0; // the process ends at once
        });
        net::real_loop loop;
        loop.run(two.comm().barrier());
        loop.run(two.comm().close());
        CHECK(two.wait() == 0);
    }
}

TEST_CASE("the layout gives every rank its own aligned slots inside the segment") {
    const int n = GENERATE(1, 2, 7);
    dist::detail::shm_layout layout(n, {});
    const auto segment = shared_memory::create(layout.bytes()); // no page of it is touched
    std::byte* const base = segment.data();
    std::vector<std::pair<std::byte*, std::byte*>> areas;
    for (int r = 0; r < n; ++r) {
        for (const std::uint32_t p : {0u, 1u}) {
            areas.emplace_back(layout.small(base, r, p),
                               layout.small(base, r, p) + layout.small_bytes());
            areas.emplace_back(layout.in(base, r, p), layout.in(base, r, p) + layout.chunk_bytes());
            areas.emplace_back(layout.out(base, r, p),
                               layout.out(base, r, p) + layout.chunk_bytes());
            for (int to = 0; to < n; ++to) {
                areas.emplace_back(layout.message(base, r, to, p),
                                   layout.message(base, r, to, p) + layout.message_bytes());
            }
        }
    }
    std::sort(areas.begin(), areas.end());
    for (std::size_t i = 0; i < areas.size(); ++i) {
        CHECK((areas[i].first - base) % 4096 == 0);
        if (i > 0) CHECK(areas[i - 1].second <= areas[i].first);
    }
    CHECK(areas.back().second <= base + layout.bytes());
}
