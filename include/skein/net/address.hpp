// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where to listen or to connect, as one short text that people can type and programs can send.
//
//     tcp:node-3:6380   tcp:[::1]:0 tcp:*:6380 unix:/run/app.sock unix-abstract:@app-1234 sim:a:1
//
// Port 0 means "any free port" when listening. `sim:` names a host of the simulated network.

#include <skein/core/result.hpp>

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace skein::net {

/// The kinds of address; the text prefix is in the comment.
enum class scheme : std::uint8_t {
    tcp = 0,           ///< tcp:host:port
    unix_path = 1,     ///< unix:/path
    unix_abstract = 2, ///< unix-abstract:@name (Linux: no file, gone with its socket)
    sim = 3,           ///< sim:host:port
};

/// A value; equality and order are by fields. A plain aggregate, so that it can be sent.
struct address {
    scheme kind = scheme::tcp;
    std::string host{};     ///< host name or numeric address; path or name for unix kinds
    std::uint16_t port = 0; ///< 0 for unix kinds

    auto operator<=>(const address&) const = default;

    [[nodiscard]] bool is_unix() const noexcept {
        return kind == scheme::unix_path || kind == scheme::unix_abstract;
    }
    /// True when only processes of this host can reach it. A name other than localhost is not,
    /// whatever it resolves to: 127.example.org may be anywhere.
    [[nodiscard]] bool is_loopback() const noexcept;

    static address tcp(std::string host, std::uint16_t port);
    /// All addresses of this host, IPv6 and IPv4, to listen on: tcp:*:port.
    static address any(std::uint16_t port);
    static address unix_socket(std::string path);
    static address abstract_unix(std::string name);
    static address sim(std::string host, std::uint16_t port);

    /// Reads the text form; the error names what is wrong and shows a valid example.
    [[nodiscard]] static result<address> parse(std::string_view text);

    /// The general factory behind the named ones.
    static address make(scheme kind, std::string host, std::uint16_t port);
};

[[nodiscard]] std::string to_string(const address& a);

/// What this host calls itself where only its own processes are meant: 127.0.0.1, or ::1 where it
/// has no IPv4 loopback. Asked of the system once.
[[nodiscard]] const std::string& own_loopback();

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/address.ipp>
#endif
