// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank of an elastic job and its supervisor tell each other: messages over net::requests, in
// order. The coordinator reads and writes them, supervisors pass them on.

#include <skein/core/error.hpp>
#include <skein/net/requests.hpp>
#include <skein/spmd/settings.hpp>
#include <skein/spmd/view.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace skein::spmd::detail {

/// The first of a rank.
struct member_hello {
    static constexpr std::uint16_t number = 0x0201;
    std::uint64_t id = 0;
    std::int64_t pid = 0;
};
/// Texts of ranks are cut: each goes to all members, and many become one view's reason.
inline constexpr std::size_t most_member_text = 1024;
inline constexpr std::size_t most_view_text = 16 * most_member_text;

/// Its beginning, of whole UTF-8 characters, if it is longer.
inline std::string clipped(std::string text, std::size_t most = most_member_text) {
    if (text.size() <= most) return text;
    constexpr std::string_view mark = " ...";
    std::size_t end = most - mark.size();
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;
    text.resize(end);
    return text += mark;
}
inline error clipped(const error& why) {
    error cut(why.code(), clipped(why.text()));
    if (!why.where().empty()) cut.with_where(clipped(why.where()));
    if (!why.cause().empty()) cut.with_cause(clipped(why.cause()));
    if (!why.hint().empty()) cut.with_hint(clipped(why.hint()));
    return cut;
}

/// For the next world.
struct member_ask {
    static constexpr std::uint16_t number = 0x0202;
    std::uint8_t last = 0;        ///< a world_end
    std::uint64_t generation = 0; ///< of the world before; 0: there was none
    std::vector<setting> settings;
    std::string why; ///< the world is broken: which collective failed, and how
};
/// It was told to go, and would like to.
struct member_leave {
    static constexpr std::uint16_t number = 0x0203;
    std::string why;
};
/// Its training is done. Its group may not hear it: it may have ended with a loss.
struct member_done {
    static constexpr std::uint16_t number = 0x0205;
    std::uint64_t generation = 0; ///< of its last world
};
/// It fails, and with it the job.
struct member_fail {
    static constexpr std::uint16_t number = 0x0204;
    error why{errc::unknown, ""};
};

/// Of the supervisor, as all below: a view that has this rank, and the way into its group.
struct member_begin {
    static constexpr std::uint16_t number = 0x0281;
    view now;
    std::int32_t rank = 0;
    std::string secret; ///< of the group, 64 hexadecimal digits
    std::string job;
    std::int32_t lost_rank = -1; ///< whose loss has ended the world before; -1: nobody's
};
/// All that is wished now.
struct member_wish {
    static constexpr std::uint16_t number = 0x0282;
    bool change = false;          ///< ranks join or leave
    std::int32_t stop_signal = 0; ///< not 0: the job is to stop
};
/// Of the supervisor itself: whether nobody knows that this view is the newest one.
struct member_hold {
    static constexpr std::uint16_t number = 0x0284;
    bool on = false;
};
/// No view has this rank any more: in order, or for this reason.
struct member_end {
    static constexpr std::uint16_t number = 0x0283;
    bool in_order = false;
    error why{errc::unknown, ""};
};

/// What such a link is for.
inline constexpr const char* purpose_of_members = "elastic-2";
/// Of one message, so that none is cut and overtaken; a view of some thousand ranks fits in.
inline constexpr std::size_t most_member_message = std::size_t{960} << 10;

[[nodiscard]] inline net::request_options in_order(std::size_t most_message) {
    net::request_options o;
    o.control_bytes = o.most_message = most_message;
    return o;
}

} // namespace skein::spmd::detail
