// SPDX-License-Identifier: Apache-2.0
// The laws of the communicator concept, for every model: values, bits, mismatches, aborts,
// deadlines.
#include "collective_values.hpp"
#include "ranks.hpp"

#include <skein/dist/reduce.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>

using namespace skein;
using namespace skein::dist;
using collective_values::expected;
using collective_values::number;
using collective_values::value_of;
using skein::sim::local_world;
using namespace std::chrono_literals;

namespace {

/// Small pieces, so that small buffers take many steps.
comm_options small_pieces() {
    comm_options o;
    o.shm.chunk_bytes = 8192;
    o.shm.small_bytes = 1024;
    o.shm.message_bytes = 4096;
    o.ring.piece_bytes = 4096;
    o.ring.small_bytes = 1024;
    o.limits.deadline = 60s;
    return o;
}

template <class T>
std::vector<T> values(int rank, std::size_t count, std::size_t from = 0) {
    std::vector<T> v(count);
    for (std::size_t i = 0; i < count; ++i) v[i] = number<T>(value_of(rank, from + i));
    return v;
}

void require(bool good, const std::string& what) {
    if (!good) throw error(errc::internal, what);
}

/// Parts of ranks that add up to something: none for rank 0, all for the last, a few, many.
std::vector<std::size_t> uneven(int ranks, int variant) {
    std::vector<std::size_t> counts;
    for (int r = 0; r < ranks; ++r) {
        const auto k = static_cast<std::size_t>(r);
        if (variant == 0) counts.push_back(k * 1000 + (r == 1 ? 3001 : 0));
        if (variant == 1) counts.push_back(r + 1 == ranks ? 9001 : 0);
        if (variant == 2) counts.push_back(k % 3);
        if (variant == 3) counts.push_back(0);
    }
    return counts;
}

template <class T>
void check_uneven_reductions(ranks::rank_view& c, reduce_op op) {
    for (int variant = 0; variant < 4; ++variant) {
        const auto counts = uneven(c.size, variant);
        const auto total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
        const auto first = std::accumulate(counts.begin(), counts.begin() + c.rank, std::size_t{0});
        auto io = values<T>(c.rank, total);
        c.reduce_scatter_v(view_of(std::span(io)), counts, op);
        for (std::size_t i = first; i < first + counts[static_cast<std::size_t>(c.rank)]; ++i)
            require(io[i] == expected<T>(op, c.size, i), "reduce_scatter_v gives another value");
        if constexpr (is_half(dtype_of<T>()) || std::is_same_v<T, float>) {
            auto again = values<T>(c.rank, total);
            std::vector<float> out(counts[static_cast<std::size_t>(c.rank)]);
            c.reduce_scatter_v(view_of(std::span(again)), counts, view_of(std::span(out)), op);
            for (std::size_t i = 0; i < out.size(); ++i)
                require(out[i] == expected<float>(op, c.size, first + i),
                        "reduce_scatter_v into f32 gives another value");
        }
    }
}

template <class T>
void check_reductions(ranks::rank_view& c) {
    for (const reduce_op op : {reduce_op::sum, reduce_op::mean, reduce_op::max, reduce_op::min}) {
        for (const std::size_t count : {0u, 1u, 7u, 64u, 129u, 1000u, 4097u, 20011u}) {
            auto io = values<T>(c.rank, count);
            c.all_reduce(view_of(std::span(io)), op);
            for (std::size_t i = 0; i < count; ++i) {
                require(io[i] == expected<T>(op, c.size, i),
                        fmt::format("all_reduce {} of {} x {}: element {} on rank {}",
                                    to_string(op), count, to_string(dtype_of<T>()), i, c.rank));
            }
        }
        for (const std::size_t part : {0u, 1u, 33u, 3001u}) {
            const std::size_t n = static_cast<std::size_t>(c.size);
            auto in = values<T>(c.rank, part * n);
            const auto before = in;
            std::vector<T> out(part);
            c.reduce_scatter(view_of(std::span(in)), view_of(std::span(out)), op);
            for (std::size_t i = 0; i < part; ++i) {
                require(out[i] ==
                            expected<T>(op, c.size, static_cast<std::size_t>(c.rank) * part + i),
                        "reduce_scatter gives another value");
            }
            require(in == before, "reduce_scatter wrote to its input");
        }
        check_uneven_reductions<T>(c, op);
    }
}

template <class T>
void check_copies(ranks::rank_view& c) {
    const auto n = static_cast<std::size_t>(c.size), me = static_cast<std::size_t>(c.rank);
    for (const std::size_t count : {0u, 1u, 65u, 5001u}) {
        auto in = values<T>(c.rank, count);
        std::vector<T> out(count * n);
        c.all_gather(view_of(std::span(in)), view_of(std::span(out)));
        for (int r = 0; r < c.size; ++r) {
            const auto part = values<T>(r, count);
            require(std::equal(part.begin(), part.end(),
                               out.begin() + static_cast<std::ptrdiff_t>(count) * r),
                    "all_gather gives another value");
        }
        // In place: the input is the own slice of the output.
        std::vector<T> again(count * n);
        std::copy(in.begin(), in.end(), again.begin() + static_cast<std::ptrdiff_t>(count * me));
        c.all_gather(view_of(std::span(again).subspan(count * me, count)),
                     view_of(std::span(again)));
        require(again == out, "all_gather in place differs");

        for (int root = 0; root < c.size; ++root) {
            auto io = values<T>(c.rank, count);
            c.broadcast(view_of(std::span(io)), root);
            require(io == values<T>(root, count), "broadcast gives another value");
        }
    }
    // all_gather_v: rank r gives 100 * r + (0 or 3000) elements, rank 0 none.
    std::vector<std::size_t> counts;
    std::vector<T> want;
    for (int r = 0; r < c.size; ++r) {
        counts.push_back(static_cast<std::size_t>(r) * 100 + (r == 1 ? 3000 : 0));
        const auto part = values<T>(r, counts.back());
        want.insert(want.end(), part.begin(), part.end());
    }
    auto in = values<T>(c.rank, counts[me]);
    std::vector<T> out(want.size());
    c.all_gather_v(view_of(std::span(in)), view_of(std::span(out)), counts);
    require(out == want, "all_gather_v gives another value");
}

template <class T>
void check_messages(ranks::rank_view& c) {
    if (c.size == 1) return;
    for (const std::size_t count : {0u, 1u, 4000u}) {
        // Around the ring, even ranks send first: no cycle of blocking sends.
        const int next = (c.rank + 1) % c.size, last = (c.rank + c.size - 1) % c.size;
        auto mine = values<T>(c.rank, count);
        std::vector<T> theirs(count);
        const auto send = [&] { c.send(view_of(std::span(mine)), next); };
        const auto receive = [&] { c.recv(view_of(std::span(theirs)), last); };
        if (c.rank % 2 == 0) {
            send();
            receive();
        } else {
            receive();
            send();
        }
        require(theirs == values<T>(last, count), "recv gives another value");
    }
}

std::vector<float> random_floats(std::uint64_t seed, std::size_t n) {
    std::vector<float> v(n);
    std::uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (auto& f : v) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        f = static_cast<float>(static_cast<std::int64_t>(x)) * 1e-18f *
            static_cast<float>(1 << (x % 20));
    }
    return v;
}

template <class T>
std::vector<T> random_values(std::uint64_t seed, std::size_t n) {
    const auto f = random_floats(seed, n);
    std::vector<T> v(n);
    for (std::size_t i = 0; i < n; ++i) {
        if constexpr (std::is_same_v<T, bf16_t>)
            v[i] = to_bf16(f[i]);
        else if constexpr (std::is_same_v<T, f16_t>)
            v[i] = to_f16(f[i] * 1e-3f);
        else if constexpr (std::is_same_v<T, std::int64_t>)
            v[i] = static_cast<std::int64_t>(f[i] * 1e6f);
        else
            v[i] = static_cast<T>(f[i]) / 3;
    }
    return v;
}

/// The bits that every rank ends with; fails if two ranks differ.
template <class T>
std::vector<std::byte> bits_of(const std::string& kind, int n, reduce_op op, std::size_t count) {
    std::vector<std::byte> bits;
    std::mutex guard;
    bool same = true;
    const auto errors = ranks::group(
        ranks::hosts_for(kind, n), kind,
        [&](ranks::rank_view& c) {
            auto io = random_values<T>(static_cast<std::uint64_t>(c.rank) + 11, count);
            c.all_reduce(view_of(std::span(io)), op);
            const auto bytes = std::as_bytes(std::span(io));
            const std::lock_guard lock(guard);
            if (bits.empty()) bits.assign(bytes.begin(), bytes.end());
            same = same && std::equal(bytes.begin(), bytes.end(), bits.begin(), bits.end());
        },
        small_pieces());
    INFO(ranks::first_error(errors));
    REQUIRE(ranks::first_error(errors).empty());
    REQUIRE(same);
    return bits;
}

} // namespace

TEST_CASE("every collective of every model gives the reference values") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const int n = GENERATE(1, 2, 3, 4, 5); // one rank: the stub
    const auto errors = ranks::group(
        ranks::hosts_for(kind, n), kind,
        [](ranks::rank_view& c) {
            check_reductions<float>(c);
            check_reductions<bf16_t>(c);
            check_reductions<f16_t>(c);
            check_reductions<double>(c);
            check_reductions<std::int64_t>(c);
            check_copies<float>(c);
            check_copies<f16_t>(c);
            check_copies<std::int64_t>(c);
            check_copies<std::byte>(c);
            check_messages<float>(c);
            check_messages<std::byte>(c);
            for (int i = 0; i < 20; ++i) c.barrier();
        },
        small_pieces());
    INFO(kind << " x" << n << ": " << ranks::first_error(errors));
    REQUIRE(ranks::first_error(errors).empty());
}

TEST_CASE("ranks of one host need not be neighbours in rank order") {
    const auto errors = ranks::group(
        {"a", "b", "a", "c", "b"}, "automatic",
        [](ranks::rank_view& c) {
            require(c.comm.name() == "hierarchical x5 on 3 hosts", c.comm.name());
            check_reductions<float>(c);
            check_reductions<bf16_t>(c);
            check_copies<std::int64_t>(c);
            check_messages<float>(c);
        },
        small_pieces());
    INFO(ranks::first_error(errors));
    REQUIRE(ranks::first_error(errors).empty());
}

TEST_CASE("two ranks get the same bits from shared memory, ring and hierarchy") {
    const auto op = GENERATE(reduce_op::sum, reduce_op::mean, reduce_op::max, reduce_op::min);
    for (const std::size_t count : {5u, 100u, 30001u}) {
        const auto check = [&]<class T>(T) {
            const auto shm = bits_of<T>("shm", 2, op, count);
            CHECK(shm == bits_of<T>("ring", 2, op, count));
            CHECK(shm == bits_of<T>("hierarchical", 2, op, count));
        };
        check(float{});
        check(double{});
        check(bf16_t{});
        check(f16_t{});
        check(std::int64_t{});
    }
}

namespace {

/// Sums of halves on one rank against float32 sums of the same values in the same model: rounded
/// once, or not at all. Rings cut the same slices for both, since the count is a whole number of
/// lines.
template <class T>
void check_half_sums(ranks::rank_view& c, reduce_op op, std::size_t count) {
    const auto seed = static_cast<std::uint64_t>(c.rank) + 5;
    const auto halves = random_values<T>(seed, count);
    std::vector<float> wide(count);
    for (std::size_t i = 0; i < count; ++i) wide[i] = to_float(halves[i]);
    const auto equal = [&](const auto& got, const auto& want, const char* what) {
        require(std::memcmp(got.data(), want.data(), got.size() * sizeof(got[0])) == 0,
                fmt::format("{} of {} x {}: other bits", what, to_string(dtype_of<T>()), count));
    };

    const auto rounded = [](std::span<const float> floats) {
        std::vector<T> r(floats.size());
        for (std::size_t i = 0; i < r.size(); ++i) {
            if constexpr (std::is_same_v<T, bf16_t>)
                r[i] = to_bf16(floats[i]);
            else
                r[i] = to_f16(floats[i]);
        }
        return r;
    };
    auto sum = wide;
    c.all_reduce(view_of(std::span(sum)), op);
    auto io = halves;
    c.all_reduce(view_of(std::span(io)), op);
    equal(io, rounded(sum), "all_reduce");

    const std::size_t part = count / static_cast<std::size_t>(c.size);
    const std::vector<std::size_t> counts(static_cast<std::size_t>(c.size), part);
    const std::size_t first = part * static_cast<std::size_t>(c.rank);
    sum = wide;
    c.reduce_scatter_v(view_of(std::span(sum)), counts, op);
    const auto own = std::span<const float>(sum).subspan(first, part);
    io = halves;
    c.reduce_scatter_v(view_of(std::span(io)), counts, op);
    equal(std::span<const T>(io).subspan(first, part), rounded(own), "reduce_scatter_v");
    io = halves;
    std::vector<T> out(part);
    c.reduce_scatter(view_of(std::span(io)), view_of(std::span(out)), op);
    equal(out, rounded(own), "reduce_scatter");
    require(io == halves, "reduce_scatter wrote to its input");
    std::vector<float> exact(part);
    c.reduce_scatter_v(view_of(std::span(io)), counts, view_of(std::span(exact)), op);
    equal(exact, own, "reduce_scatter_v into f32");
}

} // namespace

TEST_CASE("sums of halves are float32 sums in the model's order, rounded once or not at all") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const int n = GENERATE(2, 3, 4, 5);
    const auto errors = ranks::group(
        ranks::hosts_for(kind, n), kind,
        [](ranks::rank_view& c) {
            for (const auto op :
                 {reduce_op::sum, reduce_op::mean, reduce_op::max, reduce_op::min}) {
                const auto lines = static_cast<std::size_t>(c.size) * 32;
                for (const std::size_t count : {20 * lines, 170 * lines}) {
                    check_half_sums<bf16_t>(c, op, count);
                    check_half_sums<f16_t>(c, op, count);
                }
            }
        },
        small_pieces());
    INFO(kind << " x" << n << ": " << ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("a reduce_scatter_v into float32 does not meet one in place") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const std::size_t part = GENERATE(10u, 20000u);
    const auto errors = ranks::group(ranks::hosts_for(kind, 2), kind, [part](ranks::rank_view& c) {
        std::vector<bf16_t> io(2 * part);
        std::vector<float> out(part);
        const std::vector<std::size_t> counts(2, part);
        if (c.rank == 0)
            c.reduce_scatter_v(view_of(std::span(io)), counts, reduce_op::sum);
        else
            c.reduce_scatter_v(view_of(std::span(io)), counts, view_of(std::span(out)),
                               reduce_op::sum);
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::mismatch);
        CHECK(std::string(e->what()).find("into f32") != std::string::npos);
    }
}

TEST_CASE("a rank's part of a sum has the bits of the whole sum") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const int n = GENERATE(2, 3, 5);
    if (n > 2 && kind != "shm") return; // rings add in an order that depends on the cut
    const auto op = GENERATE(reduce_op::sum, reduce_op::mean);
    const auto errors = ranks::group(
        ranks::hosts_for(kind, n), kind,
        [op](ranks::rank_view& c) {
            for (int variant = 0; variant < 3; ++variant) {
                const auto counts = uneven(c.size, variant);
                const auto total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
                auto whole = random_values<float>(static_cast<std::uint64_t>(c.rank) + 11, total);
                auto parts = whole;
                c.all_reduce(view_of(std::span(whole)), op);
                c.reduce_scatter_v(view_of(std::span(parts)), counts, op);
                const auto first =
                    std::accumulate(counts.begin(), counts.begin() + c.rank, std::size_t{0});
                const auto mine = counts[static_cast<std::size_t>(c.rank)];
                require(mine == 0 || std::memcmp(whole.data() + first, parts.data() + first,
                                                 mine * sizeof(float)) == 0,
                        "other bits");
            }
        },
        small_pieces());
    INFO(kind << " x" << n << ": " << ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("the same inputs give the same bits in every run, whoever comes late") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const int n = GENERATE(3, 4);
    const auto first = bits_of<float>(kind, n, reduce_op::mean, 20000);
    for (int run = 0; run < 3; ++run)
        CHECK(first == bits_of<float>(kind, n, reduce_op::mean, 20000));
}

TEST_CASE("ranks that do different things get an error that names both sides") {
    const auto kind = GENERATE(std::string("shm"), std::string("ring"));
    const auto errors = ranks::group(ranks::hosts_for(kind, 3), kind, [](ranks::rank_view& c) {
        std::vector<float> v(c.rank == 1 ? 101 : 100);
        c.all_reduce(view_of(std::span(v)), reduce_op::sum);
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::mismatch);
        CHECK(std::string(e->what()).find("f32 x 101") != std::string::npos);
        CHECK(std::string(e->what()).find("f32 x 100") != std::string::npos);
        CHECK(std::string(e->what()).find("rank 1") != std::string::npos);
    }
}

TEST_CASE("another operation, type or root is a mismatch") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const int variant = GENERATE(0, 1, 2, 3, 4, 5, 6);
    const auto errors =
        ranks::group(ranks::hosts_for(kind, 2), kind, [variant](ranks::rank_view& c) {
            std::vector<double> v(5000);
            const bool odd = c.rank == 1;
            const auto view = view_of(std::span(v));
            const buffer_view halves{v.data(), v.size(), dtype::f32};
            if (variant == 0)
                c.all_reduce(view, odd ? reduce_op::max : reduce_op::sum);
            else if (variant == 1)
                c.all_reduce(odd ? halves : view, reduce_op::sum);
            else if (variant == 2)
                c.broadcast(view, odd ? 1 : 0);
            else if (variant == 4 && odd) // reduces all of it on the way, as the others do
                c.reduce_scatter(view, view.slice(0, view.count / static_cast<std::size_t>(c.size)),
                                 reduce_op::sum);
            else if (variant >= 5) // other parts of the same sum; the same parts of another one
                c.reduce_scatter_v(
                    view,
                    {odd && variant == 5 ? 2000u : 2500u, odd && variant == 5 ? 3000u : 2500u},
                    odd && variant == 6 ? reduce_op::min : reduce_op::sum);
            else if (variant == 3 && odd)
                c.barrier();
            else
                c.all_reduce(view, reduce_op::sum);
        });
    for (const auto& e : errors) {
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::mismatch);
    }
}

TEST_CASE("ranks that reduce different units of one size get both calls instead of a sum") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const int n = kind == "hierarchical" ? 4 : 2;
    const int variant = GENERATE(0, 1, 2); // small, large, another step of a barrier
    const auto errors =
        ranks::group(ranks::hosts_for(kind, n), kind, [variant, n](ranks::rank_view& c) {
            std::vector<float> v(variant == 0 ? 10 : 50000, 1.0f);
            const auto reduce_unit = [](std::uint32_t unit) {
                return collective_tag{.unit = unit, .phase = tag_phase::reduce, .step = 12};
            };
            const bool odd = c.rank >= n / 2; // hierarchical: the second host
            c.comm.all_reduce(view_of(std::span(v)), reduce_op::sum, reduce_unit(2)).wait();
            require(v[0] == static_cast<float>(n), "the same tag is no mismatch");
            if (variant < 2) {
                c.comm.all_reduce(view_of(std::span(v)), reduce_op::sum, reduce_unit(odd ? 4 : 3))
                    .wait();
            } else {
                collective_tag save{.phase = tag_phase::save, .step = odd ? 8u : 7u};
                c.comm.barrier(save).wait();
            }
        });
    for (const auto& e : errors) {
        REQUIRE(e);
        const std::string text = e->what();
        INFO(text);
        CHECK(e->code() == errc::mismatch);
        const bool save = variant == 2;
        const auto has = [&](const char* words) { return text.find(words) != std::string::npos; };
        CHECK(has(save ? "save of unit 0 at step 7" : "reduce of unit 3 at step 12"));
        CHECK(has(save ? "save of unit 0 at step 8" : "reduce of unit 4 at step 12"));
        CHECK(has("rank 0 is in "));
        CHECK(has(n == 4 ? "rank 2 in " : "rank 1 in "));
    }
}

TEST_CASE("a tag holds for one operation") {
    const auto kind = GENERATE(std::string("stub"), std::string("shm"), std::string("ring"),
                               std::string("hierarchical"));
    const int n = kind == "stub" ? 1 : 3;
    const auto errors = ranks::group(ranks::hosts_for(kind, n), kind, [](ranks::rank_view& c) {
        std::vector<double> v(100, 1.0), all(100 * static_cast<std::size_t>(c.size)), part(100);
        std::vector<std::size_t> counts(static_cast<std::size_t>(c.size), 100);
        const collective_tag tag{.unit = 1, .phase = tag_phase::gather, .step = 5};
        const auto io = view_of(std::span(v)), wide = view_of(std::span(all));
        c.comm.all_gather(io, wide, tag).wait();
        c.comm.all_gather_v(io, wide, counts, tag).wait();
        c.comm.reduce_scatter(wide, view_of(std::span(part)), reduce_op::sum, tag).wait();
        c.comm.broadcast(io, 0, tag).wait();
        std::vector<bf16_t> halves(100 * counts.size(), to_bf16(1.0f));
        std::vector<float> exact(100);
        c.comm
            .reduce_scatter_v(view_of(std::span(halves)), counts, view_of(std::span(exact)),
                              reduce_op::sum, tag)
            .wait();
        require(exact[99] == static_cast<float>(c.size), "wrong sum");
        c.barrier(); // without a tag
        c.comm.submit(0, [](communicator& on) { return on.barrier(); }, tag).wait();
        require(part[0] == static_cast<double>(c.size), "wrong sum");
    });
    INFO(kind << ": " << ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("an abort from any thread ends the waiting of all ranks with its error") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const auto errors = ranks::group(ranks::hosts_for(kind, 3), kind, [](ranks::rank_view& c) {
        std::vector<float> v(50000, 1.0f);
        c.all_reduce(view_of(std::span(v)), reduce_op::sum);
        if (c.rank == 2) c.comm.abort(error(errc::peer_lost, "rank 7 is lost"));
        c.all_reduce(view_of(std::span(v)), reduce_op::sum);
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::peer_lost);
        CHECK(std::string(e->what()).find("rank 7 is lost") != std::string::npos);
    }
}

TEST_CASE("what all have done their part of ends well, also when one aborts right after") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    for (int round = 0; round < 40; ++round) {
        const auto errors = ranks::group(ranks::hosts_for(kind, 2), kind, [](ranks::rank_view& c) {
            std::vector<float> v(10, 1.0f);
            c.all_reduce(view_of(std::span(v)), reduce_op::sum);
            if (c.rank == 1) c.comm.abort(error(errc::aborted, "enough"));
        });
        INFO(round << ": " << ranks::first_error(errors));
        REQUIRE(ranks::first_error(errors).empty());
    }
}

TEST_CASE("a rank that does not come is named on all ranks after the deadline") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const std::size_t count = GENERATE(10u, 400000u);
    comm_options options;
    options.limits.deadline = 300ms;
    ranks::event_gate gate;
    const auto errors = ranks::group(
        ranks::hosts_for(kind, 4), kind,
        [&](ranks::rank_view& c) {
            std::vector<float> v(count, 1.0f);
            c.all_reduce(view_of(std::span(v)), reduce_op::sum);
            if (c.rank == 3) {
                gate.wait_for_others(3);
                return;
            }
            try {
                c.all_reduce(view_of(std::span(v)), reduce_op::sum);
            } catch (...) {
                gate.arrive();
                throw;
            }
            gate.arrive();
        },
        options);
    for (int r = 0; r < 3; ++r) {
        const auto& e = errors[static_cast<std::size_t>(r)];
        REQUIRE(e);
        INFO("rank " << r << ": " << e->what());
        CHECK(e->code() == errc::timeout);
        CHECK(std::string(e->what()).find("rank 3 failed in") != std::string::npos);
        CHECK(std::string(e->what()).find("#2") != std::string::npos);
    }
}

TEST_CASE("a rank that leaves early is named by those who go on") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const auto errors = ranks::group(ranks::hosts_for(kind, 3), kind, [](ranks::rank_view& c) {
        std::vector<float> v(30000, 1.0f);
        c.all_reduce(view_of(std::span(v)), reduce_op::sum);
        if (c.rank != 1) c.all_reduce(view_of(std::span(v)), reduce_op::sum);
    });
    CHECK(!errors[1]);
    for (const int r : {0, 2}) {
        const auto& e = errors[static_cast<std::size_t>(r)];
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::peer_lost);
        CHECK(std::string(e->what()).find("rank 1 failed in") != std::string::npos);
    }
}

TEST_CASE("a rank whose compute thread throws takes the group with it at once") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const auto errors = ranks::group(ranks::hosts_for(kind, 3), kind, [](ranks::rank_view& c) {
        std::vector<float> v(30000, 1.0f);
        if (c.rank == 0) throw error(errc::invalid_argument, "bad luck");
        c.all_reduce(view_of(std::span(v)), reduce_op::sum);
    });
    CHECK(errors[0]->code() == errc::invalid_argument);
    for (const int r : {1, 2}) {
        const auto& e = errors[static_cast<std::size_t>(r)];
        REQUIRE(e);
        CHECK(e->code() == errc::aborted);
        CHECK(std::string(e->what()).find("rank 0 leaves because of an exception") !=
              std::string::npos);
    }
}

TEST_CASE("the loss of a member reported by the rendezvous ends the group") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    local_world world(ranks::hosts_for(kind, 3));
    comm_options options;
    options.model = kind;
    const auto errors = ranks::each(3, [&](int r) {
        auto comm = make_comm_thread(world.at(r), options);
        std::vector<float> v(1000, 1.0f);
        comm->all_reduce(view_of(std::span(v)), reduce_op::sum).wait();
        if (r == 2) {
            world.lose(2, error(errc::peer_lost, "killed by signal 9"));
            return;
        }
        comm->all_reduce(view_of(std::span(v)), reduce_op::sum).wait();
    });
    for (const int r : {0, 1}) {
        const auto& e = errors[static_cast<std::size_t>(r)];
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() == errc::peer_lost);
        CHECK(std::string(e->what()).find("rank 2") != std::string::npos);
    }
}

TEST_CASE("after an error every later call gives it again") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const auto errors = ranks::group(ranks::hosts_for(kind, 3), kind, [](ranks::rank_view& c) {
        std::vector<float> v(10);
        c.comm.abort(error(errc::aborted, "enough"));
        for (int i = 0; i < 3; ++i) {
            try {
                c.all_reduce(view_of(std::span(v)), reduce_op::sum);
                if (i == 2) throw error(errc::internal, "it went on");
            } catch (const error& e) {
                require(e.code() == errc::aborted, e.what());
            }
        }
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("memory of a device is refused by models that work in the host's, and nothing is sent") {
    const auto kind = GENERATE(std::string("stub"), std::string("shm"), std::string("ring"),
                               std::string("hierarchical"));
    const int n = kind == "stub" ? 1 : 2;
    const auto errors = ranks::group(ranks::hosts_for(kind, n), kind, [](ranks::rank_view& c) {
        std::vector<float> v(10, 1.0f);
        auto far = view_of(std::span(v));
        far.where = device::cuda(1);
        for (int variant = 0; variant < 3; ++variant) {
            try {
                if (variant == 0) c.all_reduce(far, reduce_op::sum);
                if (variant == 1) c.broadcast(far, 0);
                if (variant == 2 && c.size > 1) c.send(far, 1 - c.rank);
                if (variant < 2 || c.size > 1) throw error(errc::internal, "it was taken");
            } catch (const error& e) {
                require(e.code() == errc::not_supported, e.what());
                require(e.text().find("not supported: ") == 0, e.what());
                require(e.text().find("cuda:1") != std::string::npos, e.what());
            }
        }
        c.all_reduce(view_of(std::span(v)), reduce_op::sum); // the group goes on
        require(v[0] == static_cast<float>(c.size), "wrong sum");
    });
    INFO(kind << ": " << ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("an abort comes with its cause and its hint, whichever way it takes") {
    const auto kind =
        GENERATE(std::string("shm"), std::string("ring"), std::string("hierarchical"));
    const auto errors = ranks::group(ranks::hosts_for(kind, 3), kind, [](ranks::rank_view& c) {
        c.barrier();
        if (c.rank == 2)
            c.comm.abort(error(errc::disk_full, "cannot save")
                             .with_cause("no space left " + std::string(5000, '!'))
                             .with_hint("make some"));
        c.barrier();
        c.barrier();
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == errc::disk_full);
        CHECK(e->text().ends_with("cannot save"));
        CHECK(e->cause().starts_with("no space left !"));
        CHECK(e->hint() == "make some");
    }
    CHECK(errors[0]->cause().size() <= 1000); // what travels is bounded
}
