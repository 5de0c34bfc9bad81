// SPDX-License-Identifier: Apache-2.0
// Memory of a communicator: what is shared with whom, and that collectives in it give the bits that
// they give elsewhere.
#include "ranks.hpp"

#include <skein/dist/group_memory.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>

using namespace skein;
using namespace skein::dist;
using namespace std::chrono_literals;

namespace {

void expect(bool good, const std::string& what) {
    if (!good) throw error(errc::internal, what);
}

/// Small slots, so that little data takes the ways of much.
comm_options little_slots() {
    comm_options o;
    o.shm.chunk_bytes = 8192;
    o.shm.small_bytes = 4096;
    o.ring.small_bytes = 1024;
    o.limits.deadline = 60s;
    return o;
}

template <class T>
std::span<T> span_of(const std::shared_ptr<group_memory>& m, std::size_t at, std::size_t count) {
    return std::span(reinterpret_cast<T*>(m->data()) + at, count);
}

template <class T>
void fill(std::span<T> v, int rank) {
    for (std::size_t i = 0; i < v.size(); ++i) {
        const auto x =
            static_cast<double>((i * 7919 + static_cast<std::size_t>(rank) * 131) % 10007);
        if constexpr (std::is_same_v<T, bf16_t>)
            v[i] = to_bf16(static_cast<float>(x) / 17);
        else
            v[i] = static_cast<T>(x / 17);
    }
}

template <class T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

std::vector<std::size_t> uneven_counts(int ranks, std::size_t scale) {
    std::vector<std::size_t> counts;
    for (int r = 0; r < ranks; ++r) counts.push_back(static_cast<std::size_t>(r) * scale + 7);
    counts[0] = 0;
    return counts;
}

/// Each collective once in memory of the group and once in a vector: the same bits.
template <class T>
void check_reductions(ranks::rank_view& c, const std::shared_ptr<group_memory>& m) {
    for (const reduce_op op : {reduce_op::sum, reduce_op::mean, reduce_op::max, reduce_op::min}) {
        for (const std::size_t count : {0u, 1u, 100u, 4001u, 20011u}) {
            const auto in = span_of<T>(m, 24, count);
            fill(in, c.rank);
            std::vector<T> out(in.begin(), in.end());
            c.all_reduce(view_of(in), op);
            c.all_reduce(view_of(std::span(out)), op);
            expect(same_bits<T>(in, out), "all_reduce differs");
        }
        for (const std::size_t scale : {10u, 5000u}) {
            const auto counts = uneven_counts(c.size, scale);
            const auto total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
            const auto first =
                std::accumulate(counts.begin(), counts.begin() + c.rank, std::size_t{0});
            const auto in = span_of<T>(m, 8, total);
            fill(in, c.rank);
            std::vector<T> out(in.begin(), in.end());
            c.reduce_scatter_v(view_of(in), counts, op);
            c.reduce_scatter_v(view_of(std::span(out)), counts, op);
            const auto mine = counts[static_cast<std::size_t>(c.rank)];
            expect(same_bits<T>(in.subspan(first, mine), std::span(out).subspan(first, mine)),
                   "reduce_scatter_v differs");
        }
        const auto n = static_cast<std::size_t>(c.size);
        const auto in = span_of<T>(m, 0, 3000 * n);
        fill(in, c.rank);
        const std::vector<T> before(in.begin(), in.end());
        std::vector<T> here(3000), there(3000);
        c.reduce_scatter(view_of(in), view_of(std::span(here)), op);
        std::vector<T> copy = before;
        c.reduce_scatter(view_of(std::span(copy)), view_of(std::span(there)), op);
        expect(same_bits<T>(here, there), "reduce_scatter differs");
        expect(same_bits<T>(in, before), "reduce_scatter wrote to its input");
    }
}

/// own: in place, from elsewhere, and from memory into a vector; common: one copy for the host.
template <class T>
void check_copies(ranks::rank_view& c, const std::shared_ptr<group_memory>& m) {
    const auto n = static_cast<std::size_t>(c.size), me = static_cast<std::size_t>(c.rank);
    for (const std::size_t part : {0u, 3u, 6007u}) {
        std::vector<T> mine(part), want(part * n);
        fill(std::span(mine), c.rank);
        c.all_gather(view_of(std::span(mine)), view_of(std::span(want)));

        const auto all = span_of<T>(m, 16, part * n);
        c.all_gather(view_of(std::span(mine)), view_of(all));
        expect(same_bits<T>(all, want), "all_gather into the memory differs");
        c.barrier(); // common memory: nobody fills it again while another still looks
        const auto own = all.subspan(part * me, part);
        std::copy(mine.begin(), mine.end(), own.begin());
        c.all_gather(view_of(own), view_of(all));
        expect(same_bits<T>(all, want), "all_gather in place differs");
        if (m->kind() == memory_kind::own) {
            const auto in = span_of<T>(m, 40, part);
            fill(in, c.rank);
            std::vector<T> out(part * n);
            c.all_gather(view_of(in), view_of(std::span(out)));
            expect(same_bits<T>(out, want), "all_gather from the memory differs");
        }
        c.barrier();
        for (int root = 0; root < c.size; ++root) {
            const auto io = span_of<T>(m, 8, part);
            if (m->kind() == memory_kind::own || c.rank == root) fill(io, c.rank);
            c.broadcast(view_of(io), root);
            std::vector<T> roots(part);
            fill(std::span(roots), root);
            // Common memory is common to a host: a root elsewhere hands it to a leader first.
            expect(same_bits<T>(io, roots), "broadcast differs");
            c.barrier();
        }
    }
    const auto counts = uneven_counts(c.size, 4000);
    const auto total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    std::vector<T> mine(counts[me]), want(total);
    fill(std::span(mine), c.rank);
    c.all_gather_v(view_of(std::span(mine)), view_of(std::span(want)), counts);
    const auto all = span_of<T>(m, 0, total);
    c.all_gather_v(view_of(std::span(mine)), view_of(all), counts);
    expect(same_bits<T>(all, want), "all_gather_v differs");
    c.barrier();
}

std::string kind_and_size(const std::string& kind, int n) {
    return kind + " x" + std::to_string(n);
}

} // namespace

TEST_CASE("collectives in memory of the group give the bits that they give elsewhere") {
    const auto kind = GENERATE(std::string("stub"), std::string("shm"), std::string("ring"),
                               std::string("hierarchical"));
    const int n = kind == "stub" ? 1 : kind == "hierarchical" ? 5 : 3;
    const auto errors = ranks::group(
        ranks::hosts_for(kind, n), kind,
        [&](ranks::rank_view& c) {
            const auto own = c.comm.allocate(1 << 20, memory_kind::own);
            const auto common = c.comm.allocate(1 << 20, memory_kind::common);
            const bool everywhere = kind == "stub" || kind == "shm";
            expect(own->everywhere() == everywhere && common->everywhere() == everywhere,
                   "everywhere");
            expect(own->bytes() == 1 << 20 && own->kind() == memory_kind::own, "own");
            expect(own->data()[0] == std::byte{0}, "fresh memory is zero");
            check_reductions<float>(c, own);
            check_reductions<bf16_t>(c, own);
            check_reductions<double>(c, own);
            check_reductions<std::int64_t>(c, own);
            for (const auto& m : {own, common}) {
                check_copies<float>(c, m);
                check_copies<bf16_t>(c, m);
                check_copies<std::int64_t>(c, m);
            }
        },
        little_slots());
    INFO(kind_and_size(kind, n) << ": " << ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("common memory shows all ranks of a host what one of them writes") {
    const auto errors = ranks::group({"a", "a", "b", "b"}, "hierarchical", [](ranks::rank_view& c) {
        const auto m = c.comm.allocate(100000, memory_kind::common);
        expect(!m->everywhere(), "two hosts do not share memory");
        if (c.rank % 2 == 0) m->data()[99999] = std::byte{static_cast<unsigned char>(c.rank + 1)};
        c.barrier();
        expect(std::to_integer<int>(m->data()[99999]) == c.rank / 2 * 2 + 1, "another byte");
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("one place in memory and another, or none, is a mismatch") {
    const int variant = GENERATE(0, 1, 2);
    const std::size_t count = GENERATE(10u, 50000u);
    const auto errors = ranks::group({"a", "a"}, "shm", [&](ranks::rank_view& c) {
        const auto one = c.comm.allocate(1 << 20, memory_kind::own);
        const auto two = c.comm.allocate(1 << 20, memory_kind::own);
        std::vector<float> elsewhere(count);
        auto io = span_of<float>(one, 64, count);
        if (c.rank == 1 && variant == 0) io = span_of<float>(one, 128, count);
        if (c.rank == 1 && variant == 1) io = span_of<float>(two, 64, count);
        if (c.rank == 1 && variant == 2) io = std::span(elsewhere);
        c.all_reduce(view_of(io), reduce_op::sum);
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::mismatch);
        CHECK(std::string(e->what()).find("at byte 256 of memory 1") != std::string::npos);
    }
}

TEST_CASE("memory of different sizes or kinds is a mismatch") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const int n = kind == "hierarchical" ? 4 : 2;
    const bool other_kind = GENERATE(false, true);
    const auto errors = ranks::group(ranks::hosts_for(kind, n), kind, [&](ranks::rank_view& c) {
        const bool odd = c.rank >= n / 2; // hierarchical: the second host
        (void)c.comm.allocate(odd && !other_kind ? 8192 : 4096,
                              odd && other_kind ? memory_kind::common : memory_kind::own);
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::mismatch);
        CHECK(std::string(e->what()).find("4096 bytes, own") != std::string::npos);
    }
}

TEST_CASE("more memory than there can be is one error on all ranks") {
    const auto kind = GENERATE(std::string("stub"), std::string("shm"), std::string("ring"),
                               std::string("hierarchical"));
    const auto memory = GENERATE(memory_kind::own, memory_kind::common);
    const int n = kind == "stub" ? 1 : 3;
    const auto errors = ranks::group(ranks::hosts_for(kind, n), kind, [&](ranks::rank_view& c) {
        (void)c.comm.allocate(std::size_t{1} << 60, memory);
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::exhausted);
    }
}

TEST_CASE("memory is given back one rank at a time, and leaves no descriptor") {
    const auto count = [] {
        const std::filesystem::directory_iterator all("/proc/self/fd");
        return std::distance(begin(all), end(all));
    };
    std::ptrdiff_t before = 0, after = 0;
    const auto errors = ranks::group({"a", "a", "a"}, "shm", [&](ranks::rank_view& c) {
        c.barrier();
        if (c.rank == 0) before = count();
        c.barrier();
        for (int i = 0; i < 20; ++i) {
            auto m = c.comm.allocate(1 << 20, memory_kind::own);
            auto v = span_of<float>(m, 0, 100000);
            fill(v, c.rank);
            c.all_reduce(view_of(v), reduce_op::sum);
            if (c.rank == i % 3) m.reset();
            std::vector<float> other(50000, 1.0f); // may get the address of what was unmapped
            c.all_reduce(view_of(std::span(other)), reduce_op::sum);
            expect(other.back() == 3.0f, "wrong sum");
        }
        c.barrier();
        if (c.rank == 0) after = count();
        c.barrier();
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
    CHECK(after == before);
}

TEST_CASE("memory outlives its communicator") {
    std::vector<std::shared_ptr<group_memory>> kept(2);
    const auto errors = ranks::group({"a", "a"}, "shm", [&](ranks::rank_view& c) {
        const auto m = c.comm.allocate(4096, memory_kind::common);
        if (c.rank == 0) m->data()[7] = std::byte{42};
        kept[static_cast<std::size_t>(c.rank)] = m;
        c.barrier();
    });
    CHECK(ranks::first_error(errors).empty());
    CHECK(kept[1]->data()[7] == std::byte{42});
}

TEST_CASE("an abort, a leaving rank and a late one end a collective in memory as elsewhere") {
    const int variant = GENERATE(0, 1, 2);
    comm_options options;
    if (variant == 2) options.limits.deadline = 300ms;
    ranks::event_gate gate;
    const auto errors = ranks::group(
        {"a", "a", "a"}, "shm",
        [&](ranks::rank_view& c) {
            const auto m = c.comm.allocate(1 << 20, memory_kind::own);
            auto v = span_of<float>(m, 0, 200000);
            c.all_reduce(view_of(v), reduce_op::sum);
            if (c.rank == 2) {
                if (variant == 0) c.comm.abort(error(errc::peer_lost, "rank 7 is lost"));
                if (variant == 2) gate.wait_for_others(2);
                return;
            }
            try {
                for (;;) c.all_reduce(view_of(v), reduce_op::sum);
            } catch (...) {
                gate.arrive();
                throw;
            }
        },
        options);
    for (const int r : {0, 1}) {
        const auto& e = errors[static_cast<std::size_t>(r)];
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == (variant == 2 ? errc::timeout : errc::peer_lost));
        CHECK(std::string(e->what()).find(variant == 0 ? "rank 7 is lost" : "rank 2 failed in") !=
              std::string::npos);
    }
}
