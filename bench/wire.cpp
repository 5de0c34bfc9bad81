// SPDX-License-Identifier: Apache-2.0
// What encoding costs: a small message against the same bytes written by hand, bulk data against
// memcpy, and the checksum.

#include "bench.hpp"

#include <skein/core/crc32c.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <skein/wire/schema.hpp>

#include <cstring>

#include <malloc.h>

namespace bench_wire {
/// About what a remote call carries.
struct call {
    std::uint64_t id = 0;
    std::uint32_t function = 0;
    std::string name;
    std::vector<std::int32_t> shape;
    std::optional<double> scale;
    bool is_last = false;
};
struct bulk {
    std::vector<float> values;
};
struct bulk_view {
    std::span<const float> values;
};
} // namespace bench_wire

namespace {

using skein::byte_buffer;
using skein::byte_span;
namespace wire = skein::wire;
using bench_wire::bulk;
using bench_wire::bulk_view;
using bench_wire::call;

call make_call() {
    call c;
    c.id = 77;
    c.function = 3;
    c.name = "layer.12.attention.weight";
    c.shape = {1, 2, 3, 4};
    c.scale = 0.5;
    return c;
}

template <class T>
void put(byte_buffer& out, const T& value) {
    const auto at = out.size();
    out.resize(at + sizeof value);
    std::memcpy(out.data() + at, &value, sizeof value);
}
/// What one would write without a library.
byte_buffer by_hand(const call& c) {
    byte_buffer out;
    out.reserve(128);
    put(out, c.id);
    put(out, c.function);
    put(out, static_cast<std::uint32_t>(c.name.size()));
    skein::append(out, skein::as_bytes(c.name));
    put(out, static_cast<std::uint32_t>(c.shape.size()));
    skein::append(out, skein::as_bytes(std::span(c.shape)));
    put(out, static_cast<std::uint8_t>(c.scale ? 1 : 0));
    if (c.scale) put(out, *c.scale);
    put(out, static_cast<std::uint8_t>(c.is_last));
    return out;
}
template <class T>
T take(const std::byte*& at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
}
/// Trusts its input: the checks are what the library adds.
call read_by_hand(byte_span bytes) {
    const auto* at = bytes.data();
    call c;
    c.id = take<std::uint64_t>(at);
    c.function = take<std::uint32_t>(at);
    const auto name = take<std::uint32_t>(at);
    c.name.assign(reinterpret_cast<const char*>(at), name);
    at += name;
    const auto shape = take<std::uint32_t>(at);
    c.shape.resize(shape);
    std::memcpy(c.shape.data(), at, shape * sizeof(std::int32_t));
    at += shape * sizeof(std::int32_t);
    if (take<std::uint8_t>(at) != 0) c.scale = take<double>(at);
    c.is_last = take<std::uint8_t>(at) != 0;
    return c;
}

double gib_per_s(std::size_t bytes, double seconds) {
    return static_cast<double>(bytes) / seconds / (1024.0 * 1024.0 * 1024.0);
}

} // namespace

int main() {
#ifdef M_MMAP_THRESHOLD // glibc: large blocks stay mapped, so that nobody's copy pays for page faults
    ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
    ::mallopt(M_TRIM_THRESHOLD, -1);
#endif
    constexpr int rounds = 15, messages = 200'000;
    bool ok = true;
    const call small = make_call();
    const auto small_bytes = wire::encode(small);
    const auto hand_bytes = by_hand(small);
    {
        const auto [ours, theirs] =
            bench::in_turns<2>(rounds, {[&] {
                                            return bench::cpu_ns_per(messages, [&] {
                                                for (int i = 0; i < messages; ++i)
                                                    bench::keep(wire::encode(small).data());
                                            });
                                        },
                                        [&] {
                                            return bench::cpu_ns_per(messages, [&] {
                                                for (int i = 0; i < messages; ++i)
                                                    bench::keep(by_hand(small).data());
                                            });
                                        }});
        ok &= bench::figure("wire.encode_small", ours.median, "ns")
                  .against("written by hand", theirs.median)
                  .at_most(2.0)
                  .print();
    }
    {
        const auto [ours, theirs] = bench::in_turns<2>(
            rounds, {[&] {
                         return bench::cpu_ns_per(messages, [&] {
                             for (int i = 0; i < messages; ++i)
                                 bench::keep(wire::decode<call>(small_bytes)->id);
                         });
                     },
                     [&] {
                         return bench::cpu_ns_per(messages, [&] {
                             for (int i = 0; i < messages; ++i)
                                 bench::keep(read_by_hand(hand_bytes).id);
                         });
                     }});
        ok &= bench::figure("wire.decode_small", ours.median, "ns")
                  .against("written by hand, unchecked", theirs.median)
                  .at_most(2.0)
                  .print();
    }
    {
        bulk large;
        large.values.assign(4 << 20, 1.5f);
        const std::size_t bytes = large.values.size() * sizeof(float);
        byte_buffer target(bytes);
        const auto encoded = wire::encode(large);
        const auto [encode, decode, view, copy] = bench::in_turns<4>(
            rounds,
            {[&] {
                 return gib_per_s(bytes, bench::cpu_seconds([&] {
                                      wire::writer out;
                                      wire::encode(out, large);
                                      bench::keep(out.size());
                                  }));
             },
             [&] {
                 return gib_per_s(bytes, bench::cpu_seconds([&] {
                                      bench::keep(wire::decode<bulk>(encoded)->values.data());
                                  }));
             },
             [&] {
                 return bench::cpu_ns_per(1000, [&] {
                     for (int i = 0; i < 1000; ++i)
                         bench::keep(wire::decode<bulk_view>(encoded)->values.data());
                 });
             },
             [&] {
                 return gib_per_s(bytes, bench::cpu_seconds([&] {
                                      byte_buffer fresh(
                                          skein::as_bytes(std::span(large.values)).begin(),
                                          skein::as_bytes(std::span(large.values)).end());
                                      bench::keep(fresh.data());
                                  }));
             }});
        ok &= bench::figure("wire.encode_16_mib", encode.median, "GiB/s")
                  .against("a copy into a new buffer", copy.median)
                  .at_least(0.8)
                  .print();
        ok &= bench::figure("wire.decode_16_mib", decode.median, "GiB/s")
                  .against("a copy into a new buffer", copy.median)
                  .at_least(0.8)
                  .print();
        ok &= bench::figure("wire.view_16_mib", view.median, "ns").print();
    }
    {
        byte_buffer data(1 << 20, std::byte{7}), target(1 << 20);
        const auto [sum, copy] = bench::in_turns<2>(
            rounds, {[&] {
                         return gib_per_s(data.size(), bench::cpu_seconds([&] {
                                              bench::keep(skein::crc32c(data));
                                          }));
                     },
                     [&] {
                         return gib_per_s(data.size(), bench::cpu_seconds([&] {
                                              std::memcpy(target.data(), data.data(), data.size());
                                              bench::keep(target.data());
                                          }));
                     }});
        ok &= bench::figure(skein::crc32c_is_hardware() ? "wire.crc32c" : "wire.crc32c_table",
                            sum.median, "GiB/s")
                  .against("memcpy", copy.median)
                  .print();
    }
    return ok ? 0 : 1;
}
