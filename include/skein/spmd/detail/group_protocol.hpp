// SPDX-License-Identifier: Apache-2.0
#pragma once
// Frames of the group protocol; comes after spmd/group.hpp. Bodies are wire-encoded.

#include <skein/core/error.hpp>
#include <skein/net/address.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/options.hpp>
#include <skein/net/token.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace skein::spmd::detail {

/// Kinds of frames; client to server unless said.
namespace kind {
inline constexpr std::uint16_t join = 0x0101;       ///< join_body
inline constexpr std::uint16_t contribute = 0x0102; ///< blob_body
inline constexpr std::uint16_t leave = 0x0103;      ///< empty
inline constexpr std::uint16_t failed = 0x0104;     ///< loss_body
inline constexpr std::uint16_t tell = 0x0105;       ///< blob_body; of rank 0
inline constexpr std::uint16_t refused = 0x0181;    ///< server: loss_body
inline constexpr std::uint16_t formed = 0x0182;     ///< server: formed_body
inline constexpr std::uint16_t gathered = 0x0183;   ///< server: gathered_body
inline constexpr std::uint16_t lost = 0x0184;       ///< server: loss_body
} // namespace kind

struct join_body {
    member_info self;
    std::vector<setting> settings;
};
/// Which rank (-1: nobody in particular), and why.
using loss_body = std::tuple<std::int32_t, error>;
struct formed_body {
    std::int32_t generation = 0;
    std::vector<member_info> members;
    byte_buffer given;
};
struct blob_body {
    std::string key;
    byte_buffer blob;
};
struct gathered_body {
    std::string key;
    std::vector<byte_buffer> blobs;
};

/// How the two ends of a group talk.
[[nodiscard]] net::connection_options link_options(const group_options& options, std::string name);
/// Where other hosts can reach, everybody could be a rank of a world without a secret.
void require_secret(const net::address& at, const net::token& secret);

template <class Body>
void send(net::connection& link, std::uint16_t kind, const Body& body) {
    net::frame f;
    f.kind = kind;
    f.body = wire::encode(body);
    link.send(std::move(f));
}

} // namespace skein::spmd::detail
