// SPDX-License-Identifier: Apache-2.0
// The head of a call from any bytes, and what else travels of calls and actors: read within bounds
// or refused; what is read is written back as it was.
#include <skein/rt/detail/actor_terms.hpp>
#include <skein/rt/detail/direct_message.hpp>
#include <skein/rt/detail/group_message.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <algorithm>
#include <array>

using skein::rt::detail::call_head;

/// A message of workers about direct calls: what can be read is written back as it was.
template <class T>
void round_trip(skein::byte_span all) {
    const auto read = skein::wire::decode<T>(all);
    if (!read) return;
    const auto written = skein::wire::encode(*read);
    if (!std::equal(written.begin(), written.end(), all.begin(), all.end())) std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const skein::byte_span all(reinterpret_cast<const std::byte*>(data), size);
    const skein::time_point now(std::chrono::seconds(7));
    constexpr std::uint64_t sender = 99;
    skein::wire::reader in(all);
    call_head head;
    if (head.decode(in, sender, now)) {
        skein::wire::writer out;
        head.encode(out, now);
        const auto written = out.bytes();
        // What is left of a deadline is held within the clock's range.
        if (written.size() > size) std::abort();
        std::array<std::byte, 16> first{}; // objects are told of by who has them
        std::copy_n(all.begin(), first.size(), first.begin());
        first[call_head::bits_at] &= std::byte(~call_head::objects_bit & 0xFF);
        if (head.who.until == skein::time_point::max() &&
            !std::equal(first.begin(), first.end(), written.begin()))
            std::abort();
    }
    skein::rt::detail::actor_terms terms;
    skein::wire::reader options(all);
    if (terms.decode(options)) {
        skein::wire::writer out;
        terms.encode(out);
        const auto written = out.bytes();
        if (written.size() != options.position() ||
            !std::equal(written.begin(), written.end(), all.begin()))
            std::abort();
    }
    skein::rt::detail::lending_reply reply;
    if (reply.decode(all)) {
        skein::wire::writer out;
        out.raw(reply.value);
        skein::rt::detail::lending_reply::append(out, reply.actors);
        const auto written = out.bytes();
        if (!std::equal(written.begin(), written.end(), all.begin(), all.end())) std::abort();
    }
    round_trip<skein::rt::detail::where_question>(all);
    round_trip<skein::rt::detail::where_answer>(all);
    round_trip<skein::rt::detail::worker_end>(all);
    round_trip<skein::rt::detail::direct_hello>(all);
    round_trip<skein::rt::detail::group_question>(all);
    round_trip<skein::rt::detail::group_answer>(all);
    skein::rt::detail::relay_head relay;
    skein::wire::reader passed(all);
    if (relay.decode(passed)) {
        skein::wire::writer out;
        relay.encode(out);
        const auto written = out.bytes();
        if (!std::equal(written.begin(), written.end(), all.begin())) std::abort();
    }
    const auto failed = skein::rt::detail::decode_failure(all);
    (void)failed.what.what();
    return 0;
}
