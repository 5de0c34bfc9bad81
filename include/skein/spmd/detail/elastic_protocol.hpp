// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank of an elastic job and its supervisor say to each other; frames of one connection
// whose bodies are wire-encoded. The coordinator reads and writes them, supervisors pass them on.

#include <skein/core/error.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/frame.hpp>
#include <skein/spmd/settings.hpp>
#include <skein/spmd/view.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace skein::spmd::detail {

/// Kinds of frames; of the rank unless said.
namespace member_kind {
inline constexpr std::uint16_t hello = 0x0201; ///< member_hello; the first frame
inline constexpr std::uint16_t ask = 0x0202;   ///< member_ask
inline constexpr std::uint16_t leave = 0x0203; ///< member_leave
inline constexpr std::uint16_t fail = 0x0204;  ///< member_fail
inline constexpr std::uint16_t done = 0x0205;  ///< member_done
inline constexpr std::uint16_t begin = 0x0281; ///< of the supervisor: member_begin
inline constexpr std::uint16_t wish = 0x0282;  ///< of the supervisor: member_wish
inline constexpr std::uint16_t end = 0x0283;   ///< of the supervisor: member_end
inline constexpr std::uint16_t hold = 0x0284;  ///< of the supervisor itself: member_hold
} // namespace member_kind

struct member_hello {
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
    std::uint8_t last = 0;        ///< a world_end
    std::uint64_t generation = 0; ///< of the world before; 0: there was none
    std::vector<setting> settings;
    std::string why; ///< the world is broken: which collective failed, and how
};
/// It was told to go, and would like to.
struct member_leave {
    std::string why;
};
/// Its training is done. Its group may not hear it: it may have ended with a loss.
struct member_done {
    std::uint64_t generation = 0; ///< of its last world
};
/// It fails, and with it the job.
using member_fail = std::tuple<error>;

/// A view that has this rank, and the way into its group.
struct member_begin {
    view now;
    std::int32_t rank = 0;
    std::string secret; ///< of the group, 64 hexadecimal digits
    std::string job;
    std::int32_t lost_rank = -1; ///< whose loss has ended the world before; -1: nobody's
};
/// All that is wished now.
struct member_wish {
    bool change = false;          ///< ranks join or leave
    std::int32_t stop_signal = 0; ///< not 0: the job is to stop
};
/// Whether nobody knows that this view is the newest one.
struct member_hold {
    bool on = false;
};
/// No view has this rank any more: in order, or for this reason.
using member_end = std::tuple<bool, error>;

/// Of one frame; a view of some thousand ranks fits in.
inline constexpr std::size_t most_member_frame = std::size_t{4} << 20;

template <class Body>
void say(net::connection& to, std::uint16_t kind, const Body& body) {
    net::frame f;
    f.kind = kind;
    f.body = wire::encode(body);
    to.send(std::move(f));
}

} // namespace skein::spmd::detail
