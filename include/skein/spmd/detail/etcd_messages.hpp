// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is said to etcd's JSON gateway and what it answers, as functions of text: no network here.
//
// Keys and values travel in base64, whole numbers of 64 bits as text, and what is zero, false or
// empty is left out. A stream is a line of {"result": ...} each. Answers are bytes from outside:
// readers are bounded, never throw, and are fuzzed.
//   source: etcd api/etcdserverpb/rpc.proto; etcd.io, "gRPC gateway"

#include <skein/core/result.hpp>
#include <skein/spmd/view.hpp>
#include <skein/spmd/view_register.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace skein::spmd::detail {

/// Of one answer, or of one line of a stream.
inline constexpr std::size_t etcd_answer_limit = 8u << 20;
/// Of a view as it is stored; etcd itself takes 1.5 MiB in a request.
inline constexpr std::size_t etcd_view_limit = 1u << 20;
/// Views before the newest that a stored one names, see stored_view.
inline constexpr std::size_t etcd_views_named = 16;

[[nodiscard]] std::string to_base64(std::string_view bytes);
///   errors  malformed
[[nodiscard]] result<std::string> from_base64(std::string_view text);

/// A key's value. mod_revision 0: there is no such key.
struct etcd_value {
    std::string value;
    std::int64_t mod_revision = 0;
    std::int64_t lease = 0;
};

/// What begins every answer.
struct etcd_header {
    std::uint64_t cluster = 0;
    std::int64_t revision = 0;
};

struct etcd_range {
    etcd_header header;
    etcd_value kv;
};
/// Of a swap: what holds after it, where it was not made.
struct etcd_swap {
    etcd_header header;
    bool made = false;
    etcd_value now;
};
/// Of a lease; ttl 0: there is no such lease any more.
struct etcd_lease {
    etcd_header header;
    std::int64_t id = 0, ttl = 0; ///< ttl: seconds
};
/// Of authenticate.
struct etcd_token {
    etcd_header header;
    std::string token;
};
/// Where only the header matters.
struct etcd_done {
    etcd_header header;
};

/// One line of a watch.
struct etcd_watch_line {
    etcd_header header;
    bool created = false;
    bool ended = false;          ///< etcd ends the watch, for `why`
    std::string why;             ///< "compacted" where the revision asked for is gone
    std::vector<etcd_value> now; ///< the key after each change; mod_revision 0: it was deleted
};

/// How a call failed at etcd: a code of gRPC and its text.
struct etcd_failure {
    int code = 0; ///< -1: the answer is none of etcd's gateway
    std::string text;
};

[[nodiscard]] std::string range_request(std::string_view key);
/// Puts the value under a lease (0: none) if the key's mod_revision is that one (0: no such key),
/// else reads it.
[[nodiscard]] std::string swap_request(std::string_view key, std::int64_t mod_revision,
                                       std::string_view value, std::int64_t lease = 0);
[[nodiscard]] std::string watch_request(std::string_view key, std::int64_t from_revision);
[[nodiscard]] std::string grant_request(std::int64_t lease, std::int64_t ttl);
/// To keep a lease alive, or to revoke it.
[[nodiscard]] std::string lease_request(std::int64_t lease);
[[nodiscard]] std::string authenticate_request(std::string_view user, std::string_view password);

// Answers. errors: malformed, too_large.
[[nodiscard]] result<etcd_range> read_range(std::string_view body);
[[nodiscard]] result<etcd_swap> read_swap(std::string_view body);
[[nodiscard]] result<etcd_lease> read_grant(std::string_view body);
[[nodiscard]] result<etcd_lease> read_keep_alive(std::string_view body);
[[nodiscard]] result<etcd_token> read_token(std::string_view body);
[[nodiscard]] result<etcd_done> read_done(std::string_view body);
[[nodiscard]] result<etcd_watch_line> read_watch_line(std::string_view line);
/// Of an answer that is no success: never fails itself.
[[nodiscard]] etcd_failure read_failure(std::string_view body);
/// Of GET /version: "3.4.23"; empty: it is none of etcd's.
[[nodiscard]] std::string read_version(std::string_view body);

/// A view as the key holds it. The nonces of it and of those before tell whose swap was made where
/// its answer was lost, and others have swapped since.
struct stored_view {
    view now;
    std::string nonce;
    std::vector<std::string> before; ///< nonces, the newest first; etcd_views_named at most
    friend bool operator==(const stored_view&, const stored_view&) = default;
};
[[nodiscard]] std::string write_view(const stored_view& stored);
///   errors  malformed; mismatch: of a newer release
[[nodiscard]] result<stored_view> read_view(std::string_view text);
[[nodiscard]] bool is_by(const stored_view& stored, std::string_view nonce) noexcept;

[[nodiscard]] std::string write_place(const coordinator_place& place);
[[nodiscard]] result<coordinator_place> read_place(std::string_view text);

} // namespace skein::spmd::detail

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/etcd_messages.ipp>
#endif
