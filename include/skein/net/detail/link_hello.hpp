// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the two ends of a link say first on every connection, and the kinds of a link's own frames.
//
//   dialling side                              accepting side
//   hello: link, generation, received   --->
//                                       <---   answer: verdict, generation, received
//   messages from `received` on         <-->   messages from `received` on

#include <skein/core/error.hpp>
#include <skein/core/result.hpp>
#include <skein/net/frame.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace skein::net::detail {

/// Frames of the link itself; kinds from first_link_kind on are not the user's.
enum link_kind : std::uint16_t {
    link_hello_kind = 0xfe01,
    link_answer_kind = 0xfe02,
    link_ack_kind = 0xfe03,     ///< id: messages received
    link_fin_kind = 0xfe04,     ///< no more messages follow; counts as one
    link_goodbye_kind = 0xfe05, ///< the link ends now; the body says why, id: an answer's verdict
};

inline constexpr std::uint32_t link_version = 1;
inline constexpr std::size_t link_greeting_bytes = 2048; ///< most of a hello or an answer

struct link_hello {
    std::uint32_t version = link_version;
    std::uint64_t from = 0;       ///< the incarnation of the dialling process
    std::uint64_t to = 0;         ///< the incarnation it expects; 0: any
    std::uint64_t number = 0;     ///< of the link, among those of `from`
    std::uint64_t generation = 0; ///< grows with every connection; older ones are refused
    std::uint64_t received = 0;   ///< messages of this link that `from` has
    std::uint64_t window_messages = 0, window_bytes = 0;
    bool fresh = true;  ///< no answer for this link has come yet
    bool resume = true; ///< wants to come back after a break
};

enum class link_verdict : std::uint8_t {
    good,
    stale,       ///< a newer connection of this link is known
    restarted,   ///< another incarnation was expected
    forgotten,   ///< no such link
    closed,      ///< it has ended in order
    ended,       ///< it has ended otherwise; the text says how
    dead,        ///< the dialling process was declared dead; the text says why
    no_place,    ///< too many links
    not_allowed, ///< the hello contradicts what is known
};
inline constexpr std::uint8_t link_verdicts = 9;

struct link_answer {
    std::uint32_t version = link_version;
    std::uint8_t verdict = 0;
    std::uint64_t incarnation = 0; ///< of the accepting process
    std::uint64_t generation = 0;  ///< the newest it knows of this link
    std::uint64_t received = 0;    ///< messages of this link that it has
    std::uint64_t window_messages = 0, window_bytes = 0;
    bool resume = true;
    std::string why;
};

/// Reads a hello or an answer.
///   errors  malformed (another kind, another version, bytes that do not decode, numbers out of
///           range)
template <class T>
[[nodiscard]] result<T> read_greeting(const frame& f) {
    constexpr bool hello = std::is_same_v<T, link_hello>;
    if (f.kind != (hello ? link_hello_kind : link_answer_kind)) {
        return error(errc::malformed,
                     fmt::format("a frame of kind {:#x} where a link begins", f.kind))
            .with_hint("the peer does not speak in links; check address and purpose");
    }
    if (f.body.size() > link_greeting_bytes) {
        return error(errc::too_large,
                     fmt::format("a link greeting of {} bytes is above the limit of {}",
                                 f.body.size(), link_greeting_bytes));
    }
    auto read = wire::decode<T>(f.body);
    if (!read) return read.error();
    if (read->version != link_version) {
        return error(errc::mismatch, fmt::format("the peer speaks version {} of links, we speak {}",
                                                 read->version, link_version))
            .with_hint("build both sides from the same version of skein");
    }
    bool sound = read->window_messages > 0 && read->window_bytes > 0;
    if constexpr (hello) {
        sound = sound && read->from != 0 && read->number != 0 && read->generation != 0;
    } else {
        sound = sound && read->verdict < link_verdicts && read->incarnation != 0;
    }
    if (!sound) return error(errc::malformed, "a link greeting with impossible numbers");
    return std::move(*read);
}

} // namespace skein::net::detail
