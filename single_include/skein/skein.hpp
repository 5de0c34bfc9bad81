// SPDX-License-Identifier: Apache-2.0
#pragma once
// skein, the torch-free part, as one file.
// Written by scripts/amalgamate.py from include/; do not edit. Never mix it with the split headers.
#if defined(SKEIN_VERSION_STRING) && !defined(SKEIN_SINGLE_INCLUDE)
#error "skein: do not mix single_include/ with the split headers in one program"
#endif
#ifndef SKEIN_SINGLE_INCLUDE
#define SKEIN_SINGLE_INCLUDE 1
#endif
#define SKEIN_AMALGAMATED 1
#if defined(SKEIN_COMPILED)
#error "skein: single_include/ is the header-only form: compile without SKEIN_COMPILED, link skein::header_only"
#endif

// ======== skein/core/config.hpp
// First in every include chain: version, compiler floor, and the macros that change a layout.
//
// What changes a layout must be the same in every file of a program. Files that disagree do not link, or the
// program stops at its start, and both say how either was compiled (detail/configuration.hpp).

#define SKEIN_VERSION_MAJOR 0
#define SKEIN_VERSION_MINOR 1
#define SKEIN_VERSION_PATCH 0
#define SKEIN_VERSION_STRING "0.1.0"

#if !defined(__cpp_impl_coroutine)
#error "skein needs C++20 coroutines: compile with -std=c++20 (g++ >= 12 or clang >= 16)"
#endif

#if defined(__clang__)
#if __clang_major__ < 16
#error "skein needs clang >= 16 (clang-19 is what its tests run on)"
#endif
#elif defined(__GNUC__)
#if __GNUC__ < 12
#error "skein needs g++ >= 12"
#endif
#endif

// The two forms of skein. Header-only, the default: every body is inline, nothing is linked. Compiled:
// SKEIN_COMPILED is defined (the CMake targets skein::runtime and skein::train do), headers declare what
// is no template, and the bodies, *.ipp, are compiled once, by src/.
#if defined(SKEIN_COMPILED)
#define SKEIN_HEADER_ONLY 0
#define SKEIN_INLINE
#else
#define SKEIN_HEADER_ONLY 1
#define SKEIN_INLINE inline
#endif

#if defined(SKEIN_SINGLE_INCLUDE) && !defined(SKEIN_AMALGAMATED)
#error "skein: do not mix single_include/ with the split headers in one program"
#endif

// Coroutine frames come from free lists per thread (core/frame_pool.hpp), but not under AddressSanitizer (clang's
// ThreadSanitizer, too), so that a use after free is found. One program, one value: see detail/configuration.hpp.
#if !defined(SKEIN_FRAME_POOL)
#if defined(__SANITIZE_ADDRESS__)
#define SKEIN_FRAME_POOL 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SKEIN_FRAME_POOL 0
#endif
#endif
#endif
#if !defined(SKEIN_FRAME_POOL)
#define SKEIN_FRAME_POOL 1
#endif


// ======== skein/core/detail/configuration.hpp
// Files of one program that were compiled in different ways do not link, or the program stops at its start.
//
// Two versions, a frame pool that is on in one file and off in another, header-only files beside compiled ones,
// single_include/ beside the split headers: all of it would link without a word, and corrupt memory. So every
// object file says how it was compiled, twice:
//   - to the linker: one strong symbol in a section group that is named after the configuration. Files alike share
//     the group; files that differ define the symbol twice, and the error names both sections (ELF only).
//   - at the start of the program, for what the linker does not see: shared libraries, link-time optimisation.

#include <cstdio>
#include <cstdlib>

#define SKEIN_DETAIL_TEXT_OF(x) #x
#define SKEIN_DETAIL_TEXT(x) SKEIN_DETAIL_TEXT_OF(x)
#define SKEIN_DETAIL_NAME_OF(major, minor, patch, pool, form, headers)                             \
    skein_##major##_##minor##_##patch##_##pool##_##form##_##headers
#define SKEIN_DETAIL_NAME(major, minor, patch, pool, form, headers)                                \
    SKEIN_DETAIL_NAME_OF(major, minor, patch, pool, form, headers)

#if SKEIN_FRAME_POOL
#define SKEIN_DETAIL_POOL frame_pool_on
#else
#define SKEIN_DETAIL_POOL frame_pool_off
#endif
#if defined(SKEIN_COMPILED)
#define SKEIN_DETAIL_FORM compiled
#else
#define SKEIN_DETAIL_FORM header_only
#endif
#if defined(SKEIN_AMALGAMATED)
#define SKEIN_DETAIL_HEADERS single_include
#else
#define SKEIN_DETAIL_HEADERS split_headers
#endif

// How this file was compiled, as an identifier: skein_0_1_0_frame_pool_on_compiled_split_headers.
#define SKEIN_CONFIGURATION                                                                        \
    SKEIN_DETAIL_NAME(SKEIN_VERSION_MAJOR, SKEIN_VERSION_MINOR, SKEIN_VERSION_PATCH,               \
                      SKEIN_DETAIL_POOL, SKEIN_DETAIL_FORM, SKEIN_DETAIL_HEADERS)

namespace skein::detail::configuration {

/// The configuration that was the first to register. Its name and type are the same in every version.
inline const char* of_the_program = nullptr;

/// Stops the program when another configuration has registered before.
inline bool agree(const char* mine) {
    if (of_the_program == nullptr) of_the_program = mine;
    if (__builtin_strcmp(of_the_program, mine) == 0) return true;
    std::fprintf(stderr,
                 "skein: files of this program were compiled in different ways, which corrupts "
                 "memory:\n  %s\n  %s\n"
                 "compile all of them with one version, one SKEIN_FRAME_POOL, one form and one "
                 "kind of headers\n",
                 of_the_program, mine);
    std::abort();
}

// Both have the configuration in their names, so a program runs this once for each that is in it. Not inlined: with
// link-time optimisation the one copy of the function makes the one copy of the symbol.
namespace SKEIN_CONFIGURATION {
#define SKEIN_DETAIL_SYMBOL                                                                        \
    "skein_files_compiled_in_different_ways__the_names_of_these_sections_say_how"
[[gnu::noinline]] inline bool registers() {
#if defined(__ELF__)
    asm volatile(
        ".ifndef " SKEIN_DETAIL_SYMBOL "\n"
        ".pushsection .rodata." SKEIN_DETAIL_TEXT(
            SKEIN_CONFIGURATION) ",\"aG\",%progbits," SKEIN_DETAIL_TEXT(SKEIN_CONFIGURATION) ",comd"
                                                                                             "at\n"
                                                                                             ".glob"
                                                                                             "l"
                                                                                             " " SKEIN_DETAIL_SYMBOL
                                                                                             "\n."
                                                                                             "hidde"
                                                                                             "n"
                                                                                             " " SKEIN_DETAIL_SYMBOL
                                                                                             "\n" SKEIN_DETAIL_SYMBOL
                                                                                             ": "
                                                                                             ".byte"
                                                                                             " 0\n"
                                                                                             ".pops"
                                                                                             "ectio"
                                                                                             "n\n."
                                                                                             "endif"
                                                                                             "\n");
#endif
    return agree(SKEIN_DETAIL_TEXT(SKEIN_CONFIGURATION));
}
#undef SKEIN_DETAIL_SYMBOL
inline const bool registered = registers();
} // namespace SKEIN_CONFIGURATION

} // namespace skein::detail::configuration

#undef SKEIN_CONFIGURATION
#undef SKEIN_DETAIL_TEXT_OF
#undef SKEIN_DETAIL_TEXT
#undef SKEIN_DETAIL_NAME_OF
#undef SKEIN_DETAIL_NAME
#undef SKEIN_DETAIL_POOL
#undef SKEIN_DETAIL_FORM
#undef SKEIN_DETAIL_HEADERS

// ======== skein/skein.hpp
// The torch-free part of skein: tasks, bytes, sockets, remote functions and actors, launching.
// Needs no LibTorch; link skein::runtime.
// Written by scripts/check_mirror.py --write.


// ======== skein/cluster.hpp
// Every public header of the layer cluster.
// Written by scripts/check_mirror.py --write.


// ======== skein/cluster/access.hpp
// How a program finds its cluster: the head's address and the token, from flags, environment or a file.
//
// The token never stands on a command line, where others could read it. It is looked for in SKEIN_TOKEN (64
// hexadecimal digits), in the file that --token-file or SKEIN_TOKEN_FILE name, and in the user's own file,
// ~/.config/skein/token, which a head makes when there is none: hosts with a common home folder need nothing else.


// ======== skein/net/address.hpp
// Where to listen or to connect, as one short text that people can type and programs can send.
//
//     tcp:node-3:6380   tcp:[::1]:0   tcp:*:6380   unix:/run/app.sock   unix-abstract:@app-1234   sim:a:1
//
// Port 0 means "any free port" when listening. `sim:` names a host of the simulated network.


// ======== skein/core/result.hpp
// A value or a skein::error: what decoders of outside bytes return, and what as_result() gives.
//
//     result<frame> f = decode(bytes);
//     if (!f) return f.error();
//     use(*f);


// ======== skein/core/error.hpp
// One error type for everything that can fail in the world outside the program.
//
// An error says what failed (with values), where (host, file, peer, rank), why (the cause) and what
// the reader can do next (the hint). It is thrown as an exception and carried inside result<T>.
//
//     throw skein::error(errc::refused, "connect tcp:node-3:6380 refused after 5 tries")
//         .with_hint("is the head running?");


#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace skein {

/// The kind of a failure; what a program may decide on. Values go over the wire: append only.
enum class errc : std::uint16_t {
    unknown = 1,
    cancelled = 2,          ///< the work was cancelled by its owner
    timeout = 3,            ///< a deadline passed
    closed = 4,             ///< the channel, stream or connection was closed in an orderly way
    refused = 5,            ///< nobody listens there, or the peer said no
    reset = 6,              ///< the connection broke
    peer_lost = 7,          ///< a rank or node died or fell silent
    worker_lost = 8,        ///< a worker process died; the text names the calls it took along
    malformed = 9,          ///< bytes from outside do not follow the format
    too_large = 10,         ///< a size exceeds its limit
    mismatch = 11,          ///< two sides disagree (schema, build, order, world size)
    permission_denied = 12, ///< authentication failed, or the system said no
    not_found = 13,
    already_exists = 14,
    not_supported = 15, ///< left out on purpose; docs/limitations.md says so
    invalid_argument = 16,
    usage = 17, ///< the command line is wrong; programs exit with 2
    disk_full = 18,
    io = 19,               ///< any other failure of a file or socket operation
    corrupt = 20,          ///< a checksum or an invariant of stored data does not hold
    not_finite = 21,       ///< a loss or gradient is NaN or infinite
    remote_exception = 22, ///< the remote function threw; the text is its what()
    exhausted = 23,        ///< a bound (queue, retries, memory) is used up
    aborted = 24,          ///< a collective or a group was aborted; the text names the culprit
    internal = 25,         ///< a broken invariant inside skein
};

/// The name of a code in messages, e.g. "peer_lost".
[[nodiscard]] constexpr std::string_view to_string(errc code) noexcept {
    switch (code) {
    case errc::unknown: return "unknown";
    case errc::cancelled: return "cancelled";
    case errc::timeout: return "timeout";
    case errc::closed: return "closed";
    case errc::refused: return "refused";
    case errc::reset: return "reset";
    case errc::peer_lost: return "peer_lost";
    case errc::worker_lost: return "worker_lost";
    case errc::malformed: return "malformed";
    case errc::too_large: return "too_large";
    case errc::mismatch: return "mismatch";
    case errc::permission_denied: return "permission_denied";
    case errc::not_found: return "not_found";
    case errc::already_exists: return "already_exists";
    case errc::not_supported: return "not_supported";
    case errc::invalid_argument: return "invalid_argument";
    case errc::usage: return "usage";
    case errc::disk_full: return "disk_full";
    case errc::io: return "io";
    case errc::corrupt: return "corrupt";
    case errc::not_finite: return "not_finite";
    case errc::remote_exception: return "remote_exception";
    case errc::exhausted: return "exhausted";
    case errc::aborted: return "aborted";
    case errc::internal: return "internal";
    }
    return "unknown";
}

/// A failure with its context. Copying is a reference count and never throws.
class error : public std::exception {
public:
    /// what: lower case, no full stop, what failed with which values.
    error(errc code, std::string what);

    error&& with_where(std::string where) && { return std::move(with_where(std::move(where))); }
    error& with_where(std::string where) &;
    error&& with_cause(std::string cause) && { return std::move(with_cause(std::move(cause))); }
    error& with_cause(std::string cause) &;
    error&& with_hint(std::string hint) && { return std::move(with_hint(std::move(hint))); }
    error& with_hint(std::string hint) &;

    [[nodiscard]] errc code() const noexcept { return parts_->code; }
    /// What failed, without where, cause and hint.
    [[nodiscard]] const std::string& text() const noexcept { return parts_->text; }
    [[nodiscard]] const std::string& where() const noexcept { return parts_->where; }
    [[nodiscard]] const std::string& cause() const noexcept { return parts_->cause; }
    [[nodiscard]] const std::string& hint() const noexcept { return parts_->hint; }
    /// The whole line: "<where>: <what>: <cause>; <hint>".
    [[nodiscard]] const char* what() const noexcept override { return parts_->line.c_str(); }

private:
    struct parts {
        errc code = errc::unknown;
        std::string text, where, cause, hint, line;
    };

    error& set(std::string parts::* field, std::string value);
    void render();

    std::shared_ptr<parts> parts_;
};

/// The error inside e: itself if it is a skein::error, else `fallback` with its what().
[[nodiscard]] error to_error(std::exception_ptr e, errc fallback = errc::unknown);

} // namespace skein


// ======== skein/core/detail/error.ipp
// The parts of an error and its line. Errors are rare: nothing here is for a hot path.

namespace skein {

SKEIN_INLINE error::error(errc code, std::string what) : parts_(std::make_shared<parts>()) {
    parts_->code = code;
    parts_->text = std::move(what);
    render();
}

SKEIN_INLINE error& error::with_where(std::string where) & {
    return set(&parts::where, std::move(where));
}
SKEIN_INLINE error& error::with_cause(std::string cause) & {
    return set(&parts::cause, std::move(cause));
}
SKEIN_INLINE error& error::with_hint(std::string hint) & {
    return set(&parts::hint, std::move(hint));
}

SKEIN_INLINE error& error::set(std::string parts::* field, std::string value) {
    if (parts_.use_count() > 1) parts_ = std::make_shared<parts>(*parts_);
    (*parts_).*field = std::move(value);
    render();
    return *this;
}

SKEIN_INLINE void error::render() {
    auto& p = *parts_;
    p.line.clear();
    if (!p.where.empty()) p.line += p.where + ": ";
    p.line += p.text;
    if (!p.cause.empty()) p.line += ": " + p.cause;
    if (!p.hint.empty()) p.line += "; " + p.hint;
}

SKEIN_INLINE error to_error(std::exception_ptr e, errc fallback) {
    try {
        std::rethrow_exception(std::move(e));
    } catch (const error& found) {
        return found;
    } catch (const std::exception& other) {
        return error(fallback, other.what());
    } catch (...) {
        return error(fallback, "an exception that is not a std::exception");
    }
}

} // namespace skein


// ======== skein/core/result.hpp, continued
#include <concepts>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace skein {

/// Either a T or an error. value() throws the error; operator* must not be used on an error.
template <class T>
class [[nodiscard]] result {
public:
    using value_type = T;

    template <class U = T>
        requires(std::constructible_from<T, U> && !std::same_as<std::remove_cvref_t<U>, result> &&
                 !std::same_as<std::remove_cvref_t<U>, skein::error>)
    result(U&& value) : state_(std::in_place_index<0>, std::forward<U>(value)) {}
    result(skein::error e) : state_(std::in_place_index<1>, std::move(e)) {}

    [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    T& value() & { return check(), *std::get_if<0>(&state_); }
    const T& value() const& { return check(), *std::get_if<0>(&state_); }
    /// By value, so that `for (auto& x : f().value())` does not walk a dead temporary.
    T value() && { return check(), std::move(*std::get_if<0>(&state_)); }

    T& operator*() & noexcept { return *std::get_if<0>(&state_); }
    const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
    T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
    T* operator->() noexcept { return std::get_if<0>(&state_); }
    const T* operator->() const noexcept { return std::get_if<0>(&state_); }

    [[nodiscard]] const skein::error& error() const noexcept { return *std::get_if<1>(&state_); }

private:
    void check() const {
        if (!has_value()) throw error();
    }
    std::variant<T, skein::error> state_;
};

/// Success or an error.
template <>
class [[nodiscard]] result<void> {
public:
    using value_type = void;

    result() = default;
    result(skein::error e) : error_(std::move(e)) {}

    [[nodiscard]] bool has_value() const noexcept { return !error_; }
    explicit operator bool() const noexcept { return has_value(); }
    void value() const {
        if (error_) throw *error_;
    }
    [[nodiscard]] const skein::error& error() const noexcept { return *error_; }

private:
    std::optional<skein::error> error_;
};

} // namespace skein


// ======== skein/net/address.hpp, continued
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
    std::string host;       ///< host name or numeric address; path or name for unix kinds
    std::uint16_t port = 0; ///< 0 for unix kinds

    auto operator<=>(const address&) const = default;

    [[nodiscard]] bool is_unix() const noexcept {
        return kind == scheme::unix_path || kind == scheme::unix_abstract;
    }
    /// True when only processes of this host can reach it. A name other than localhost is not, whatever
    /// it resolves to: 127.example.org may be anywhere.
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

} // namespace skein::net


// ======== skein/net/detail/address.ipp
// The text form of addresses, and what it takes to read one.


#include <utility>

#include <fmt/core.h>
#include <arpa/inet.h>
#include <netinet/in.h>

namespace skein::net {

SKEIN_INLINE bool address::is_loopback() const noexcept {
    if (kind != scheme::tcp || host == "localhost") return true;
    in_addr v4{};
    if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
    in6_addr v6{};
    return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

SKEIN_INLINE address address::make(scheme kind, std::string host, std::uint16_t port) {
    address a;
    a.kind = kind;
    a.host = std::move(host);
    a.port = port;
    return a;
}
SKEIN_INLINE address address::tcp(std::string host, std::uint16_t port) {
    return make(scheme::tcp, std::move(host), port);
}
SKEIN_INLINE address address::any(std::uint16_t port) { return tcp("*", port); }
SKEIN_INLINE address address::unix_socket(std::string path) {
    return make(scheme::unix_path, std::move(path), 0);
}
SKEIN_INLINE address address::abstract_unix(std::string name) {
    if (!name.starts_with('@')) name.insert(name.begin(), '@');
    return make(scheme::unix_abstract, std::move(name), 0);
}
SKEIN_INLINE address address::sim(std::string host, std::uint16_t port) {
    return make(scheme::sim, std::move(host), port);
}

SKEIN_INLINE std::string to_string(const address& a) {
    switch (a.kind) {
    case scheme::tcp:
        return a.host.find(':') != std::string::npos ? fmt::format("tcp:[{}]:{}", a.host, a.port)
                                                     : fmt::format("tcp:{}:{}", a.host, a.port);
    case scheme::unix_path: return "unix:" + a.host;
    case scheme::unix_abstract: return "unix-abstract:" + a.host;
    case scheme::sim: return fmt::format("sim:{}:{}", a.host, a.port);
    }
    return "?";
}

SKEIN_INLINE result<address> address::parse(std::string_view text) {
    const auto bad = [&](std::string_view why) {
        return error(errc::invalid_argument, fmt::format("address '{}': {}", text, why))
            .with_hint("write tcp:host:port, unix:/path or unix-abstract:@name");
    };
    const auto colon = text.find(':');
    if (colon == std::string_view::npos) return bad("no scheme");
    const auto name = text.substr(0, colon);
    auto rest = text.substr(colon + 1);
    if (name == "unix") {
        if (rest.empty()) return bad("empty path");
        return address::unix_socket(std::string(rest));
    }
    if (name == "unix-abstract") {
        if (rest.empty() || rest == "@") return bad("empty name");
        return address::abstract_unix(std::string(rest));
    }
    if (name != "tcp" && name != "sim") return bad("unknown scheme");

    const auto last = rest.rfind(':');
    if (last == std::string_view::npos) return bad("no port");
    auto host = rest.substr(0, last);
    const auto digits = rest.substr(last + 1);
    if (host.starts_with('[') && host.ends_with(']')) {
        host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != std::string_view::npos) {
        return bad("an IPv6 address needs brackets");
    }
    if (host.empty()) return bad("empty host");
    if (digits.empty() || digits.size() > 5) return bad("the port is not a number in 0..65535");
    unsigned port = 0;
    for (const char c : digits) {
        if (c < '0' || c > '9') return bad("the port is not a number in 0..65535");
        port = port * 10 + static_cast<unsigned>(c - '0');
    }
    if (port > 65535) return bad("the port is not a number in 0..65535");
    return make(name == "tcp" ? scheme::tcp : scheme::sim, std::string(host),
                static_cast<std::uint16_t>(port));
}

} // namespace skein::net

// ======== skein/net/token.hpp
// The shared secret of a world: 32 random bytes that both ends of a connection must know.
//
// It never travels; the handshake proves knowledge of it. Print it only as fingerprint().


// ======== skein/core/bytes.hpp
// The words for raw bytes: views, owned buffers, and the way to and from text.
//
//     byte_buffer packet = to_buffer("hello");
//     byte_span head = byte_span(packet).first(4);


#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace skein {

static_assert(
    std::endian::native == std::endian::little,
    "skein writes little-endian bytes with memcpy: big-endian machines are not supported");

/// Bytes of somebody else, to read.
using byte_span = std::span<const std::byte>;
/// Bytes of somebody else, to fill.
using mut_byte_span = std::span<std::byte>;
/// Bytes of one's own.
using byte_buffer = std::vector<std::byte>;

/// Views text as bytes; the view lives as long as the text.
[[nodiscard]] inline byte_span as_bytes(std::string_view text) noexcept {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Views the elements of a contiguous range of trivially copyable objects as bytes.
template <class T, std::size_t N>
    requires std::is_trivially_copyable_v<T>
[[nodiscard]] byte_span as_bytes(std::span<T, N> items) noexcept {
    return {reinterpret_cast<const std::byte*>(items.data()), items.size_bytes()};
}

/// Views bytes as text; the view lives as long as the bytes.
[[nodiscard]] inline std::string_view as_text(byte_span bytes) noexcept {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Copies bytes into a string.
[[nodiscard]] inline std::string to_string(byte_span bytes) { return std::string(as_text(bytes)); }

/// Copies bytes (or text) into an owned buffer.
[[nodiscard]] inline byte_buffer to_buffer(byte_span bytes) { return {bytes.begin(), bytes.end()}; }
[[nodiscard]] inline byte_buffer to_buffer(std::string_view text) {
    return to_buffer(as_bytes(text));
}

/// Appends bytes to a buffer.
inline void append(byte_buffer& to, byte_span bytes) {
    to.insert(to.end(), bytes.begin(), bytes.end());
}

/// Lower-case hexadecimal text, two digits a byte.
[[nodiscard]] inline std::string to_hex(byte_span bytes) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(bytes.size() * 2);
    for (const std::byte b : bytes) {
        text += digits[std::to_integer<unsigned>(b) >> 4];
        text += digits[std::to_integer<unsigned>(b) & 15];
    }
    return text;
}

/// Reads hexadecimal text into `into`; false if the length or a digit does not fit.
[[nodiscard]] inline bool from_hex(std::string_view text, mut_byte_span into) noexcept {
    if (text.size() != into.size() * 2) return false;
    const auto digit = [](char c) -> int {
        if (c >= '0' && c <= '9') return c - '0';
        if (c >= 'a' && c <= 'f') return c - 'a' + 10;
        if (c >= 'A' && c <= 'F') return c - 'A' + 10;
        return -1;
    };
    for (std::size_t i = 0; i < into.size(); ++i) {
        const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        into[i] = static_cast<std::byte>(high * 16 + low);
    }
    return true;
}

/// Loads a little-endian unsigned integer from sizeof(T) bytes.
template <class T>
    requires std::is_unsigned_v<T>
[[nodiscard]] T load_le(const std::byte* from) noexcept {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

/// Stores a little-endian unsigned integer into sizeof(T) bytes.
template <class T>
    requires std::is_unsigned_v<T>
void store_le(std::byte* to, T value) noexcept {
    std::memcpy(to, &value, sizeof value);
}

} // namespace skein

// ======== skein/core/random.hpp
// Randomness as a parameter: protocol code asks a random_source and never the system.
//
// The real world hands out system_random() (the kernel's generator, good for secrets); simulated
// worlds and tests hand out seeded_random, so that a failing run can be replayed from its seed.


// ======== skein/core/philox.hpp
// Philox4x32-10: random bits as a pure function of (counter, key).
//
// Because nothing is carried from one draw to the next, any rank can draw the value of any position
// without drawing the ones before it, and a resumed run continues exactly. Source: Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3" (2011); checked against Random123's known answers.
//
//     philox_stream random(seed, rank);
//     std::uint64_t bits = random.next();


#include <array>
#include <cstddef>
#include <cstdint>

namespace skein {

/// Which bits of a stream: any 128-bit number.
using philox_counter = std::array<std::uint32_t, 4>;
/// Which stream.
using philox_key = std::array<std::uint32_t, 2>;

/// 128 random bits for one counter under one key.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox(philox_counter counter,
                                                            philox_key key) noexcept {
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
        const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
        counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0],
                   static_cast<std::uint32_t>(p1),
                   static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1],
                   static_cast<std::uint32_t>(p0)};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return counter;
}

namespace detail {
/// Uniform in [0, bound) from a function that gives 64 uniform bits, without bias; bound > 0.
template <class Draw>
constexpr std::uint64_t below(Draw draw, std::uint64_t bound) {
    __extension__ using wide = unsigned __int128;
    const std::uint64_t threshold = (0 - bound) % bound;
    for (;;) {
        const wide product = static_cast<wide>(draw()) * bound;
        if (static_cast<std::uint64_t>(product) >= threshold)
            return static_cast<std::uint64_t>(product >> 64);
    }
}
} // namespace detail

/// The sequence of a (seed, stream) pair; position() and seek() make it resumable.
/// Meets std::uniform_random_bit_generator.
class philox_stream {
public:
    using result_type = std::uint64_t;

    constexpr explicit philox_stream(std::uint64_t seed, std::uint64_t stream = 0) noexcept
        : seed_(seed), stream_(stream) {}

    [[nodiscard]] static constexpr result_type min() noexcept { return 0; }
    [[nodiscard]] static constexpr result_type max() noexcept { return ~result_type{0}; }

    /// 64 uniform bits.
    constexpr std::uint64_t next() noexcept {
        const std::uint64_t block = position_ >> 1;
        if (!has_block_ || block != block_) {
            bits_ = philox({low(block), high(block), low(stream_), high(stream_)},
                           {low(seed_), high(seed_)});
            block_ = block;
            has_block_ = true;
        }
        const std::size_t half = (position_++ & 1) * 2;
        return std::uint64_t{bits_[half + 1]} << 32 | bits_[half];
    }
    constexpr result_type operator()() noexcept { return next(); }

    /// Uniform in [0, bound), without bias; bound > 0. May use more than one draw.
    constexpr std::uint64_t below(std::uint64_t bound) noexcept {
        return detail::below([this] { return next(); }, bound);
    }
    /// Uniform in [0, 1) with 53 random bits.
    constexpr double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

    /// Number of 64-bit values drawn so far.
    [[nodiscard]] constexpr std::uint64_t position() const noexcept { return position_; }
    /// Continues as if `position` values had been drawn.
    constexpr void seek(std::uint64_t position) noexcept { position_ = position; }

private:
    static constexpr std::uint32_t low(std::uint64_t v) { return static_cast<std::uint32_t>(v); }
    static constexpr std::uint32_t high(std::uint64_t v) {
        return static_cast<std::uint32_t>(v >> 32);
    }

    std::uint64_t seed_, stream_;
    std::uint64_t position_ = 0, block_ = 0;
    std::array<std::uint32_t, 4> bits_{};
    bool has_block_ = false;
};

} // namespace skein


// ======== skein/core/random.hpp, continued
#include <cerrno>
#include <cstring>

#include <sys/random.h>

namespace skein {

/// Uniform random bits. Not thread-safe unless the source says so.
class random_source {
public:
    virtual ~random_source() = default;

    /// 64 uniform bits.
    virtual std::uint64_t next() = 0;

    /// Fills the bytes with uniform bits.
    virtual void fill(mut_byte_span into) {
        while (!into.empty()) {
            std::byte word[8];
            store_le(word, next());
            const std::size_t n = into.size() < 8 ? into.size() : 8;
            std::memcpy(into.data(), word, n);
            into = into.subspan(n);
        }
    }
    /// Uniform in [0, bound) without bias; bound > 0.
    std::uint64_t below(std::uint64_t bound) {
        return detail::below([this] { return next(); }, bound);
    }
    /// Uniform in [0, 1).
    double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
};

/// The same sequence for the same seed, on every machine.
class seeded_random final : public random_source {
public:
    explicit seeded_random(std::uint64_t seed, std::uint64_t stream = 0) noexcept
        : stream_(seed, stream) {}
    std::uint64_t next() override { return stream_.next(); }

private:
    philox_stream stream_;
};

namespace detail {
class kernel_random final : public random_source {
public:
    std::uint64_t next() override {
        std::byte word[8];
        fill(word);
        return load_le<std::uint64_t>(word);
    }
    void fill(mut_byte_span into) override {
        while (!into.empty()) {
            const ssize_t n = ::getrandom(into.data(), into.size(), 0);
            if (n < 0) {
                if (errno == EINTR) continue;
                throw error(errc::io, std::string("getrandom failed: ") + std::strerror(errno));
            }
            into = into.subspan(static_cast<std::size_t>(n));
        }
    }
};
} // namespace detail

/// The kernel's generator: unpredictable, fit for secrets, thread-safe.
[[nodiscard]] inline random_source& system_random() noexcept {
    static detail::kernel_random source;
    return source;
}

} // namespace skein


// ======== skein/net/token.hpp, continued
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace skein::net {

/// A value; compared in constant time.
class token {
public:
    static constexpr std::size_t size = 32;

    /// All zero: "no token". Refused by endpoints on addresses that other hosts can reach.
    token() = default;

    /// A new secret from the kernel's random source, or from `source` in the simulated world.
    static token generate();
    static token generate(random_source& source);

    /// 64 hexadecimal digits, not all of them zero; surrounding white space is ignored.
    static result<token> from_hex(std::string_view text);
    [[nodiscard]] std::string to_hex() const;

    [[nodiscard]] byte_span bytes() const noexcept { return std::span<const std::byte>(bytes_); }
    [[nodiscard]] bool empty() const noexcept;

    /// Eight digits that tell two tokens apart without giving either away.
    [[nodiscard]] std::string fingerprint() const;

    friend bool operator==(const token& a, const token& b) noexcept;

private:
    std::array<std::byte, size> bytes_{};
};

} // namespace skein::net


// ======== skein/net/detail/token.ipp
// Making, reading and naming a token.


// ======== skein/core/sha256.hpp
// SHA-256 and HMAC-SHA-256, for the token handshake and for build and registry fingerprints.
//
// Small messages only: no attempt at speed beyond plain C++. Source: FIPS 180-4, RFC 2104.
//
//     digest proof = hmac_sha256(secret, challenge, name);
//     if (!equal_constant_time(proof, theirs)) refuse();


#include <algorithm>
#include <array>
#include <bit>
#include <concepts>

namespace skein {

/// The 32 bytes of a SHA-256.
using sha256_digest = std::array<std::byte, 32>;

/// An incremental SHA-256. finish() may be called once.
class sha256 {
public:
    using digest = sha256_digest;
    static constexpr std::size_t block_bytes = 64;

    void update(byte_span bytes) noexcept {
        total_ += bytes.size();
        if (used_ > 0) {
            const std::size_t n = std::min(block_bytes - used_, bytes.size());
            std::copy_n(bytes.begin(), n, block_.begin() + static_cast<std::ptrdiff_t>(used_));
            used_ += n;
            bytes = bytes.subspan(n);
            if (used_ < block_bytes) return;
            compress(block_.data());
            used_ = 0;
        }
        for (; bytes.size() >= block_bytes; bytes = bytes.subspan(block_bytes))
            compress(bytes.data());
        std::copy(bytes.begin(), bytes.end(), block_.begin());
        used_ = bytes.size();
    }
    void update(std::string_view text) noexcept { update(as_bytes(text)); }

    [[nodiscard]] digest finish() noexcept {
        const std::uint64_t bits = total_ * 8;
        std::array<std::byte, block_bytes + 8> tail{};
        tail[0] = std::byte{0x80};
        const std::size_t zeros = (used_ < 56 ? 56 : 120) - used_;
        for (std::size_t i = 0; i < 8; ++i)
            tail[zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i) & 255);
        update(byte_span(tail).first(zeros + 8));
        digest out{};
        for (std::size_t i = 0; i < 8; ++i)
            for (std::size_t k = 0; k < 4; ++k)
                out[4 * i + k] = static_cast<std::byte>(state_[i] >> (24 - 8 * k) & 255);
        return out;
    }

private:
    static constexpr std::array<std::uint32_t, 64> round_ = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};

    void compress(const std::byte* block) noexcept {
        std::array<std::uint32_t, 64> w{};
        for (std::size_t i = 0; i < 16; ++i)
            for (std::size_t k = 0; k < 4; ++k)
                w[i] = w[i] << 8 | std::to_integer<std::uint32_t>(block[4 * i + k]);
        for (std::size_t i = 16; i < 64; ++i) {
            const auto s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
            const auto s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        auto [a, b, c, d, e, f, g, h] = state_;
        for (std::size_t i = 0; i < 64; ++i) {
            const auto s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
            const auto t1 = h + s1 + ((e & f) ^ (~e & g)) + round_[i] + w[i];
            const auto s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
            const auto t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + t1;
            d = c;
            c = b;
            b = a;
            a = t1 + t2;
        }
        const std::array<std::uint32_t, 8> add = {a, b, c, d, e, f, g, h};
        for (std::size_t i = 0; i < 8; ++i) state_[i] += add[i];
    }

    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, block_bytes> block_{};
    std::size_t used_ = 0;
    std::uint64_t total_ = 0;
};

/// The SHA-256 of one piece of bytes.
[[nodiscard]] inline sha256_digest sha256_of(byte_span bytes) noexcept {
    sha256 hash;
    hash.update(bytes);
    return hash.finish();
}

/// HMAC-SHA-256 of the concatenation of all parts. The parts are not separated from each other:
/// the caller gives parts of fixed length, or writes lengths in between.
template <class... Parts>
    requires(std::convertible_to<const Parts&, byte_span> && ...)
[[nodiscard]] sha256_digest hmac_sha256(byte_span key, const Parts&... parts) noexcept {
    std::array<std::byte, sha256::block_bytes> pad{};
    if (key.size() > pad.size()) {
        const auto short_key = sha256_of(key);
        std::copy(short_key.begin(), short_key.end(), pad.begin());
    } else {
        std::copy(key.begin(), key.end(), pad.begin());
    }
    for (auto& b : pad) b ^= std::byte{0x36};
    sha256 inner;
    inner.update(byte_span(pad));
    (inner.update(byte_span(parts)), ...);
    const auto inside = inner.finish();
    for (auto& b : pad) b ^= std::byte{0x36 ^ 0x5c};
    sha256 outer;
    outer.update(byte_span(pad));
    outer.update(byte_span(inside));
    return outer.finish();
}

/// Compares secrets; the time depends on the length only, not on the place of a difference.
[[nodiscard]] inline bool equal_constant_time(byte_span a, byte_span b) noexcept {
    if (a.size() != b.size()) return false;
    unsigned char difference = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference =
            static_cast<unsigned char>(difference | std::to_integer<unsigned char>(a[i] ^ b[i]));
        asm volatile("" : "+r"(difference)); // keeps the compiler from leaving the loop early
    }
    return difference == 0;
}

} // namespace skein


// ======== skein/net/detail/token.ipp, continued
#include <fmt/core.h>

namespace skein::net {

SKEIN_INLINE token token::generate() { return generate(system_random()); }
SKEIN_INLINE token token::generate(random_source& source) {
    token t;
    source.fill(std::as_writable_bytes(std::span(t.bytes_)));
    return t;
}

SKEIN_INLINE result<token> token::from_hex(std::string_view text) {
    constexpr std::string_view blank = " \t\r\n";
    const auto first = text.find_first_not_of(blank);
    if (first != std::string_view::npos) {
        text = text.substr(first, text.find_last_not_of(blank) - first + 1);
    }
    token t;
    const bool good = skein::from_hex(text, t.bytes_);
    if (!good) { // the text is a secret: say nothing of its content
        return error(errc::invalid_argument,
                     fmt::format("a token is {} hexadecimal digits, got {} characters", 2 * size,
                                 text.size()));
    }
    if (t.empty()) {
        return error(errc::invalid_argument, "a token of zeros only is no secret")
            .with_hint("leave it out, or make one: head -c 32 /dev/urandom | xxd -p -c 32");
    }
    return t;
}

SKEIN_INLINE std::string token::to_hex() const { return skein::to_hex(bytes()); }

SKEIN_INLINE bool operator==(const token& a, const token& b) noexcept {
    return equal_constant_time(a.bytes(), b.bytes());
}
SKEIN_INLINE bool token::empty() const noexcept { return *this == token{}; }

SKEIN_INLINE std::string token::fingerprint() const {
    const auto digest = hmac_sha256(bytes(), as_bytes("skein/1 fingerprint"));
    return skein::to_hex(byte_span(digest).first(4));
}

} // namespace skein::net


// ======== skein/cluster/access.hpp, continued
#include <cstdint>
#include <string>
#include <string_view>

namespace skein::cluster {

/// Where a head listens if nothing is said.
inline constexpr std::uint16_t default_port = 7117;

/// Reads "HOST:PORT", "HOST", or an address as net::address has it; a port that is not named is default_port.
///   errors  usage
[[nodiscard]] net::address parse_head_address(std::string_view text);

/// --address, or SKEIN_ADDRESS; empty: neither is set.
[[nodiscard]] std::string find_head_address(std::string_view flag);

/// Where the token comes from, for messages: a file, or SKEIN_TOKEN. `file`: --token-file, or empty.
[[nodiscard]] std::string token_source(const std::string& file);

/// The token of the cluster that this program shall join. `file`: --token-file, or empty.
///   errors  not_found (there is none; the hint says how to get it), permission_denied (others may read the file),
///           malformed
[[nodiscard]] net::token find_token(const std::string& file);

/// The same for a head: when nothing is set and there is no file, one is made that only this user can read.
[[nodiscard]] net::token find_or_make_token(const std::string& file);

} // namespace skein::cluster


// ======== skein/cluster/detail/access.ipp
// The bodies of cluster/access.hpp.


// ======== skein/cluster/detail/token_file.hpp
// The file in which a user keeps the token of a world or a cluster. Bodies in meeting.ipp.


// ======== skein/cluster/environment.hpp
// Who started this process, and as which rank of how many: one table of launch environments.
//
// `srun ./train`, `mpirun ./train` and `torchrun --no-python ./train` each tell a process its place by
// environment variables. discover() reads them in a fixed order and gives one answer, so the program
// need not know its launcher. A half-set environment is an error that names the missing variable.


#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::cluster {

/// The place of one process among those that were started together.
struct launch_environment {
    std::string source = "local"; ///< which row of the table answered
    int rank = 0;
    int world_size = 1;
    int local_rank = 0;
    int local_size = 1;
    int attempt = 0;         ///< restarts so far, as far as the launcher says
    std::string master_host; ///< where rank 0 can be reached; empty: this host
    int master_port = 0;     ///< for rank 0's group server; 0: none given
    std::string job_id;      ///< the same for all ranks; empty if the launcher has none

    /// True when a launcher has formed a world: this process is one of its ranks.
    [[nodiscard]] bool is_launched() const noexcept { return source != "local"; }
};

/// What a supervisor starts a rank as (rt::take_boot); its message is a map of variables.
inline constexpr const char* rank_role = "rank";

/// Reads one variable; nothing if it is not set.
using variable_reader = std::function<std::optional<std::string>(std::string_view name)>;

/// The variables of this process: first what its supervisor told it alone, then what
/// take_launch_variables() has taken, then the environment.
[[nodiscard]] variable_reader process_environment();

/// Moves what says who this process is (SKEIN_RANK and its like, the address and token of its group) out
/// of the environment: a program that it starts must not take itself for this rank. process_environment()
/// still gives them. Call it before there are threads; launch() does.
void take_launch_variables();

/// Asks the table, first row that applies wins:
///   skein        SKEIN_RANK SKEIN_WORLD_SIZE SKEIN_LOCAL_RANK SKEIN_LOCAL_SIZE SKEIN_MASTER_HOST
///                SKEIN_MASTER_PORT
///   torch        RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
///   slurm        SLURM_PROCID SLURM_STEP_NUM_TASKS ... inside a step (srun), not in a batch script
///   kubernetes   JOB_COMPLETION_INDEX with WORLD_SIZE, MASTER_ADDR, MASTER_PORT
///   openmpi      OMPI_COMM_WORLD_RANK ...        pmi  PMI_RANK PMI_SIZE (MPICH, Intel MPI)
///   sagemaker    SM_HOSTS SM_CURRENT_HOST        skypilot  SKYPILOT_NODE_RANK SKYPILOT_NODE_IPS
///   local        none of them
///   errors  invalid_argument: a row applies but a variable is missing or no number; names it
[[nodiscard]] launch_environment discover(const variable_reader& read = process_environment());

/// "n[1-3,07],gpu" -> n1 n2 n3 n07 gpu, as Slurm writes node lists.
[[nodiscard]] std::vector<std::string> expand_hostlist(std::string_view text);

} // namespace skein::cluster


// ======== skein/cluster/detail/environment.ipp
// The rows of the launch table. Sources: torch.distributed.run (environment variables), Slurm's srun(1)
// OUTPUT ENVIRONMENT VARIABLES, Open MPI's mpirun(1), the PMI-1 convention of MPICH and Intel MPI,
// Kubernetes indexed jobs, SageMaker training toolkit, SkyPilot's distributed jobs.


// ======== skein/core/fnv.hpp
// FNV-1a: a small hash for names and layouts that is the same on every machine and in every build.
// Not for bytes from outside: anybody can make collisions.
//
//     skein::fnv1a h;
//     h.text(name);
//     h.number(count);
//     return h.value();
//
//   source: Fowler, Noll, Vo: draft-eastlake-fnv, 64 bits

#include <cstdint>
#include <string_view>

namespace skein {

/// The hash of all bytes given so far, in their order.
class fnv1a {
public:
    constexpr void byte(std::uint8_t b) noexcept { state_ = (state_ ^ b) * 0x100000001b3u; }
    constexpr void text(std::string_view t) noexcept {
        for (const char c : t) byte(static_cast<std::uint8_t>(c));
    }
    /// Its eight bytes, the lowest first.
    constexpr void number(std::uint64_t n) noexcept {
        for (int i = 0; i < 64; i += 8) byte(static_cast<std::uint8_t>(n >> i));
    }
    [[nodiscard]] constexpr std::uint64_t value() const noexcept { return state_; }

private:
    std::uint64_t state_ = 0xcbf29ce484222325u;
};

} // namespace skein

// ======== skein/rt/boot.hpp
// The child's side of rt/children.hpp: what a process was started with.
//
//     if (rt::started_as("worker")) {
//         rt::boot mine = *rt::take_boot("worker");
//         auto order = wire::decode<my_order>(mine.message);
//     }
//
// The message comes through an inherited pipe, so that it is seen neither in `ps` nor in
// /proc/PID/environ. At the first question the variables that name the inherited files leave the
// environment, and the files become close-on-exec: a program that this process starts is no child of
// ours by mistake, and cannot write into its pipes.


// ======== skein/core/unique_fd.hpp
// A file descriptor with one owner, and the pipe that is most often behind it.
//
//     auto [to_read, to_write] = skein::make_pipe();


#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <fcntl.h>
#include <unistd.h>

namespace skein {

/// Closes its file descriptor in the destructor; -1 is none.
class unique_fd {
public:
    explicit unique_fd(int fd = -1) noexcept : fd_(fd) {}
    unique_fd(unique_fd&& other) noexcept : fd_(other.release()) {}
    unique_fd& operator=(unique_fd&& other) noexcept {
        reset(other.release());
        return *this;
    }
    ~unique_fd() { reset(); }

    [[nodiscard]] int get() const noexcept { return fd_; }
    [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
    /// The caller owns it from here on.
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    /// Closes what it has and takes fd.
    void reset(int fd = -1) noexcept {
        const int old = std::exchange(fd_, fd);
        if (old >= 0) ::close(old);
    }

private:
    int fd_;
};

/// A close-on-exec, non-blocking pipe; first is the end to read. Throws errc::io when the process has no
/// descriptors left.
[[nodiscard]] inline std::pair<unique_fd, unique_fd> make_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        throw error(errc::io, fmt::format("pipe failed: {}", std::strerror(errno)));
    return {unique_fd(ends[0]), unique_fd(ends[1])};
}

} // namespace skein

// ======== skein/rt/shared_memory.hpp
// Memory that a process shares with a child: zeros at first, no name, gone with its last user.
//
//     auto memory = rt::shared_memory::create(4096);
//     rt::child_options how;
//     how.memory = memory;                       // the child finds it in rt::take_boot("worker")->memory
//
// Nobody can shrink it under those who use it. Both write to it at the same time: atomics only.


#include <cstddef>
#include <memory>
#include <span>

namespace skein::rt {

/// A mapping, and the file it can be passed on by. Copies share both.
class shared_memory {
public:
    /// None.
    shared_memory() noexcept = default;
    ///   errors  exhausted: no descriptors or no memory
    [[nodiscard]] static shared_memory create(std::size_t bytes);
    /// Maps what another process has created.
    ///   errors  malformed: not such memory; exhausted: no memory
    [[nodiscard]] static shared_memory open(unique_fd from);

    explicit operator bool() const noexcept { return held_ != nullptr; }
    /// Aligned to a page.
    [[nodiscard]] std::span<std::byte> bytes() const noexcept;
    /// For a child to inherit; -1 if there is none.
    [[nodiscard]] int fd() const noexcept;

private:
    struct mapping;
    static shared_memory map(unique_fd file, std::size_t bytes);
    std::shared_ptr<mapping> held_;
};

} // namespace skein::rt


// ======== skein/rt/detail/shared_memory.ipp
// The bodies of rt/shared_memory.hpp.


#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace skein::rt {

struct shared_memory::mapping {
    unique_fd file;
    std::span<std::byte> bytes;

    mapping(unique_fd f, void* at, std::size_t size) noexcept
        : file(std::move(f)), bytes(static_cast<std::byte*>(at), size) {}
    mapping(const mapping&) = delete;
    mapping& operator=(const mapping&) = delete;
    ~mapping() { ::munmap(bytes.data(), bytes.size()); }
};

namespace detail {

SKEIN_INLINE error cannot_share(std::size_t bytes, int number) {
    return error(errc::exhausted, "cannot share " + std::to_string(bytes) + " bytes with a child")
        .with_cause(std::generic_category().message(number));
}

} // namespace detail

SKEIN_INLINE shared_memory shared_memory::map(unique_fd file, std::size_t bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (at == MAP_FAILED) throw detail::cannot_share(bytes, errno);
    shared_memory out;
    out.held_ = std::make_shared<mapping>(std::move(file), at, bytes);
    return out;
}

SKEIN_INLINE shared_memory shared_memory::create(std::size_t bytes) {
    unique_fd file(::memfd_create("skein-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
        ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        throw detail::cannot_share(bytes, errno);
    return map(std::move(file), bytes);
}

SKEIN_INLINE shared_memory shared_memory::open(unique_fd from) {
    struct stat info{};
    const int seals = ::fcntl(from.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(from.get(), &info) != 0 ||
        info.st_size <= 0)
        throw error(errc::malformed, "the file that was inherited is no memory of another process");
    return map(std::move(from), static_cast<std::size_t>(info.st_size));
}

SKEIN_INLINE std::span<std::byte> shared_memory::bytes() const noexcept {
    return held_ ? held_->bytes : std::span<std::byte>();
}

SKEIN_INLINE int shared_memory::fd() const noexcept { return held_ ? held_->file.get() : -1; }

} // namespace skein::rt


// ======== skein/rt/boot.hpp, continued
#include <optional>
#include <string>
#include <string_view>

namespace skein::rt {

/// The variable that names the pipe with the boot message.
inline constexpr const char* boot_variable = "SKEIN_BOOT_FD";

/// What the parent gave this process.
struct boot {
    std::string role, name; ///< those of child_options
    byte_buffer message;
    unique_fd socket;     ///< connected with the parent; none if it did not want one
    shared_memory memory; ///< what the parent has given
};

/// True if children started this process in that role; also if what it was started with cannot be read:
/// take_boot() says so. Stays true. Ask first thing in main, before there are threads.
[[nodiscard]] bool started_as(std::string_view role) noexcept;

/// The boot message of this process, once; nothing if it was not started in that role, or when it has
/// been taken.
///   errors  malformed: something else is in the place of the message
[[nodiscard]] std::optional<boot> take_boot(std::string_view role);

} // namespace skein::rt


// ======== skein/rt/detail/boot.ipp
// The bodies of rt/boot.hpp.


// ======== skein/rt/detail/boot_message.hpp
// What is in the pipe between the two sides of rt/children.hpp and rt/boot.hpp.


#include <cstdint>
#include <string>

namespace skein::rt::detail {

struct boot_message {
    std::string role, name;
    byte_buffer message;
    std::int32_t socket = -1; ///< the number of the inherited socket, or -1
    std::int32_t memory = -1; ///< the same of the memory
};

/// The numbers that inherited files have in a child.
inline constexpr int boot_file = 3, socket_file = 4, memory_file = 5;

} // namespace skein::rt::detail

// ======== skein/rt/detail/process.hpp
// What other bodies need of rt/detail/process.ipp and rt/detail/process_start.ipp.


#include <memory>
#include <string_view>

namespace skein::rt {

class child_process;
struct process_options;

namespace detail {

/// What spawn() throws. Running out of descriptors has a limit with a name.
[[nodiscard]] error cannot_start(std::string_view executable, std::string_view step, int number);

/// The pipe for leave_last_words(), or -1. Takes its variable out of the environment and makes it
/// close-on-exec at the first call.
int adopt_last_words() noexcept;

/// A start in two steps: what can be prepared, and what may take as long as the file system likes.
class start_attempt {
public:
    ///   errors  io: no descriptors left
    explicit start_attempt(process_options how);
    start_attempt(const start_attempt&) = delete;
    start_attempt& operator=(const start_attempt&) = delete;
    ~start_attempt();

    /// Once, on any thread: starts it and blocks until the child executes the program or has failed to.
    ///   errors  those of child_process::spawn; cancelled: give_up() was called
    [[nodiscard]] child_process run();
    /// On any thread: a child that has not executed the program yet is killed, so that run() ends.
    void give_up() noexcept;

private:
    struct parts; // in detail/process_start.ipp
    const std::unique_ptr<parts> parts_;
};

} // namespace detail
} // namespace skein::rt

// ======== skein/rt/process.hpp
// A child process that cannot be left behind: it dies with its parent, its end is an event (pidfd)
// that a loop can wait for, and it can hand its parent one last text that says why it left.
//
//     rt::process_options how;
//     how.argv = {"/proc/self/exe", "--worker"};
//     auto child = rt::child_process::spawn(how);
//     child.kill(SIGTERM);
//     fmt::print("{}\n", child.wait_blocking().describe());   // "killed by signal 15 (SIGTERM)"
//
// task<exit_status> rt::wait(loop, child) on a real loop is in <skein/rt/process_wait.hpp>.


#include <csignal>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>
#include <sys/wait.h>

namespace skein::rt {

/// "SIGKILL" for 9; "signal 64" for one without a name.
[[nodiscard]] std::string signal_name(int number);

/// How a process ended.
class exit_status {
public:
    /// raw: what waitpid() gave.
    explicit exit_status(int raw = 0) noexcept : raw_(raw) {}

    [[nodiscard]] bool success() const noexcept { return exited() && code() == 0; }
    [[nodiscard]] bool exited() const noexcept { return WIFEXITED(raw_); }
    /// The exit code; -1 if a signal ended it.
    [[nodiscard]] int code() const noexcept { return exited() ? WEXITSTATUS(raw_) : -1; }
    /// The signal that ended it; 0 if it exited.
    [[nodiscard]] int signal() const noexcept { return WIFSIGNALED(raw_) ? WTERMSIG(raw_) : 0; }
    [[nodiscard]] bool dumped_core() const noexcept { return WIFSIGNALED(raw_) && WCOREDUMP(raw_); }
    /// "exited with 3" or "killed by signal 9 (SIGKILL)".
    [[nodiscard]] std::string describe() const;

private:
    int raw_;
};

/// How this host calls itself.
[[nodiscard]] std::string host_name();

/// "hello:w2": a program and a process's part in it. Linux keeps 15 characters; the program is cut.
[[nodiscard]] std::string process_title(std::string_view program, std::string_view part);

/// Makes `top` and `pgrep` show this process so; what is started as /proc/self/exe is "exe" otherwise.
void name_process(std::string_view part);

/// What to start and how.
struct process_options {
    std::vector<std::string> argv;                        ///< argv[0] is the name the child sees
    std::string executable;                               ///< what to execute; empty: argv[0]
    std::vector<std::pair<std::string, std::string>> env; ///< added to or replacing ours
    std::vector<std::string> unset_env;                   ///< names the child does not inherit
    std::string cwd;                                      ///< empty: ours
    /// {ours, the child's}: open files the child gets under these numbers. All others are closed.
    std::vector<std::pair<int, int>> fds;
    std::string stdout_file, stderr_file; ///< appended to; empty: see *_fd
    int stdout_fd = -1, stderr_fd = -1;   ///< our descriptor to use; -1: inherited
    bool keep_stdin = false;              ///< otherwise the child reads /dev/null
    /// A process group of its own: no Ctrl-C from the terminal, and what the child leaves behind in
    /// the group is killed when its end is seen.
    bool own_group = false;
    bool die_with_parent = true; ///< SIGKILL when the thread that spawned it ends
    bool last_words = true;      ///< give it a pipe for leave_last_words()
};

/// The variable that names the pipe of leave_last_words().
inline constexpr const char* last_words_variable = "SKEIN_LAST_WORDS_FD";

/// In a child: hands the parent a text (at most 4096 bytes) that says why this process leaves.
/// Without such a parent it does nothing. Never blocks, never throws. Gives whether there is one.
bool leave_last_words(std::string_view text) noexcept;

namespace detail {
class start_attempt;
}

/// One child process. Movable. The destructor kills (SIGKILL) and reaps a child that still runs.
class child_process {
public:
    child_process() noexcept = default;

    /// Starts it. Throws not_found/permission_denied/io with the step that failed. Blocks the thread until
    /// the child executes the program: on a loop use rt::local_children. No memory is copied, however much
    /// this process has. With die_with_parent the calling thread must outlive the child: Linux ties that to
    /// the thread.
    [[nodiscard]] static child_process spawn(process_options how);

    child_process(child_process&& other) noexcept;
    child_process& operator=(child_process&& other) noexcept;
    ~child_process();

    /// -1 for a default-constructed object. Kept after the end for messages.
    [[nodiscard]] pid_t pid() const noexcept { return pid_; }
    /// Readable when the process has ended; owned by this object.
    [[nodiscard]] int pidfd() const noexcept { return pidfd_.get(); }
    /// True until its end was seen by one of the waits or try_wait().
    [[nodiscard]] bool running() const noexcept { return pid_ > 0 && !status_; }
    [[nodiscard]] const std::optional<exit_status>& status() const noexcept { return status_; }

    /// Sends a signal; nothing happens if it has ended.
    void kill(int signal) noexcept;
    /// Sends a signal to its process group (needs own_group); reaches its children too.
    void kill_group(int signal) noexcept;

    /// The exit status if it has ended; does not block.
    std::optional<exit_status> try_wait() noexcept;
    /// Blocks the thread until it ends.
    exit_status wait_blocking();

    /// The text the child left with leave_last_words(); call it after its end. May be empty.
    [[nodiscard]] std::string last_words();

private:
    friend class detail::start_attempt;
    void reap(int flags) noexcept;

    pid_t pid_ = -1;
    bool own_group_ = false;
    unique_fd pidfd_, words_;
    std::optional<exit_status> status_;
};

} // namespace skein::rt


// ======== skein/rt/detail/process.ipp
// The bodies of rt/process.hpp: names, and how the end of a child is seen. Its start: process_start.ipp.


// ======== skein/core/check.hpp
// SKEIN_CHECK: a bug of the caller ends the program with place and values, in every build type.
//
//     SKEIN_CHECK(r < n, "rank {} >= world size {}", r, n);


#include <source_location>

#include <fmt/core.h>

// The compiled form goes with the fmt it was built with; its CMake targets say which one that was.
#if defined(SKEIN_COMPILED) && defined(SKEIN_FMT_MAJOR)
#if FMT_VERSION / 10000 != SKEIN_FMT_MAJOR
#error                                                                                             \
    "skein: compiled with another fmt than the one found first here. LibTorch brings one of its own: give its include folder with -idirafter, not with -isystem"
#endif
#endif

namespace skein::detail {

/// Prints condition, values and place to standard error and aborts.
[[noreturn]] void check_failed(const char* condition, std::source_location where,
                               fmt::string_view text, fmt::format_args values);

/// The slow path of SKEIN_CHECK: takes the values by reference, formats nothing itself.
template <class... Values>
[[noreturn, gnu::cold, gnu::noinline]] void check_failed_with(const char* condition,
                                                              std::source_location where,
                                                              fmt::format_string<Values...> text,
                                                              Values&&... values) {
    check_failed(condition, where, text, fmt::make_format_args(values...));
}

} // namespace skein::detail

/// Aborts with the message (fmt syntax) and location when the condition is false.
#define SKEIN_CHECK(condition, ...)                                                                \
    (static_cast<bool>(condition) ? void()                                                         \
                                  : ::skein::detail::check_failed_with(                            \
                                        #condition, std::source_location::current(), __VA_ARGS__))


// ======== skein/core/detail/check.ipp
// What a failed check says, and the end of the program.

#include <cstdio>
#include <cstdlib>
#include <string>

namespace skein::detail {

SKEIN_INLINE void check_failed(const char* condition, std::source_location where,
                               fmt::string_view text, fmt::format_args values) {
    const std::string message = fmt::vformat(text, values);
    std::fprintf(stderr, "skein: check failed: %s: %s (%s:%u in %s)\n", condition, message.c_str(),
                 where.file_name(), where.line(), where.function_name());
    std::fflush(stderr);
    std::abort();
}

} // namespace skein::detail


// ======== skein/rt/detail/process.ipp, continued
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE std::string signal_name(int number) {
    switch (number) {
    case SIGHUP: return "SIGHUP";
    case SIGINT: return "SIGINT";
    case SIGQUIT: return "SIGQUIT";
    case SIGILL: return "SIGILL";
    case SIGTRAP: return "SIGTRAP";
    case SIGABRT: return "SIGABRT";
    case SIGBUS: return "SIGBUS";
    case SIGFPE: return "SIGFPE";
    case SIGKILL: return "SIGKILL";
    case SIGUSR1: return "SIGUSR1";
    case SIGUSR2: return "SIGUSR2";
    case SIGSEGV: return "SIGSEGV";
    case SIGPIPE: return "SIGPIPE";
    case SIGALRM: return "SIGALRM";
    case SIGTERM: return "SIGTERM";
    case SIGXCPU: return "SIGXCPU";
    default: return "signal " + std::to_string(number);
    }
}

SKEIN_INLINE std::string exit_status::describe() const {
    if (exited()) return fmt::format("exited with {}", code());
    return fmt::format("killed by signal {} ({}){}", signal(), signal_name(signal()),
                       dumped_core() ? ", core dumped" : "");
}

SKEIN_INLINE std::string host_name() {
    char text[256] = {};
    ::gethostname(text, sizeof text - 1);
    return text;
}

SKEIN_INLINE std::string process_title(std::string_view program, std::string_view part) {
    program.remove_prefix(std::min(program.rfind('/') + 1, program.size()));
    constexpr std::size_t kept = 15;
    const auto tail = (":" + std::string(part)).substr(0, kept);
    return std::string(program.substr(0, kept - tail.size())) + tail;
}

SKEIN_INLINE void name_process(std::string_view part) {
    ::prctl(PR_SET_NAME, process_title(::program_invocation_short_name, part).c_str());
}

SKEIN_INLINE int detail::adopt_last_words() noexcept {
    static const int adopted = [] {
        const char* number = std::getenv(last_words_variable);
        if (number == nullptr) return -1;
        const int fd = std::atoi(number);
        ::unsetenv(last_words_variable); // what this process starts leaves its own words elsewhere
        return fd > 2 && ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1;
    }();
    return adopted;
}

SKEIN_INLINE bool leave_last_words(std::string_view text) noexcept {
    const int to = detail::adopt_last_words();
    if (to < 0) return false;
    const auto bytes = std::min<std::size_t>(text.size(), 4096);
    return ::write(to, text.data(), bytes) >= 0;
}

SKEIN_INLINE child_process::child_process(child_process&& other) noexcept {
    *this = std::move(other);
}

SKEIN_INLINE child_process& child_process::operator=(child_process&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(own_group_, other.own_group_);
    std::swap(pidfd_, other.pidfd_);
    std::swap(words_, other.words_);
    std::swap(status_, other.status_);
    return *this;
}

SKEIN_INLINE child_process::~child_process() {
    if (!running()) return;
    kill(SIGKILL);
    wait_blocking();
}

SKEIN_INLINE void child_process::kill(int signal) noexcept {
    if (running()) ::kill(pid_, signal);
}

SKEIN_INLINE void child_process::kill_group(int signal) noexcept {
    if (!running()) return;
    if (own_group_) ::kill(-pid_, signal);
    ::kill(pid_, signal);
}

SKEIN_INLINE std::optional<exit_status> child_process::try_wait() noexcept {
    if (running()) reap(WNOHANG);
    return status_;
}

SKEIN_INLINE exit_status child_process::wait_blocking() {
    SKEIN_CHECK(pid_ > 0, "wait for a process that was never started");
    if (running()) reap(0);
    return *status_;
}

SKEIN_INLINE std::string child_process::last_words() {
    std::string text;
    char piece[4096];
    for (;;) {
        auto n = words_.get() >= 0 ? ::read(words_.get(), piece, sizeof piece) : 0;
        if (n <= 0 || text.size() > 65536) return text;
        text.append(piece, std::size_t(n));
    }
}

SKEIN_INLINE void child_process::reap(int flags) noexcept {
    int raw = 0;
    pid_t got = 0;
    if (own_group_) {
        // Seen, but not yet reaped: until then the group's number belongs to nobody else.
        siginfo_t seen{};
        while ((got = ::waitid(P_PID, id_t(pid_), &seen, flags | WEXITED | WNOWAIT)) < 0 &&
               errno == EINTR) {}
        if (got == 0 && seen.si_pid == pid_) ::kill(-pid_, SIGKILL);
    }
    do {
        got = ::waitpid(pid_, &raw, flags);
    } while (got < 0 && errno == EINTR);
    if (got == pid_) status_ = exit_status(raw);
    // Somebody else reaped it (SIGCHLD ignored): the end is known, the status is not.
    if (got < 0) status_ = exit_status(0xff00);
}

SKEIN_INLINE child_process child_process::spawn(process_options how) {
    detail::start_attempt once(std::move(how));
    return once.run();
}

} // namespace skein::rt

// ======== skein/rt/detail/process_start.ipp
// The start of a child process: what is prepared, and what the child does before it executes the program.
//
// Until then the child shares the memory of this process, and the thread that started it stands still
// (CLONE_VM | CLONE_VFORK): nothing is copied, however large this process is, and no page of it is made
// read-only for a copy on write. So what runs in the child calls the kernel directly, allocates nothing,
// and is not instrumented: a sanitizer would take what it does for deeds of this process.


#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <mutex>
#include <tuple>

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

extern char** environ;
#if defined(__GLIBC__)
// ThreadSanitizer takes every clone() for a fork and holds its locks around it; it does not know this name.
extern "C" int __clone(int (*)(void*), void*, int, void*, ...);
#endif

#if defined(__clang__)
#define SKEIN_IN_CHILD __attribute__((disable_sanitizer_instrumentation, noinline))
#else
#define SKEIN_IN_CHILD __attribute__((no_sanitize("address", "thread", "undefined"), noinline))
#endif

namespace skein::rt::detail {

/// A file that the child gets: ours, the number it has there.
struct passed_file {
    int source, target;
};

/// Everything the child needs between its start and exec, prepared before it: no allocation there.
struct child_plan {
    const char* executable;
    char* const* argv;
    char* const* env;
    const char* cwd;
    passed_file* fds; // the sources get replaced by copies
    std::size_t fd_count;
    int first_free; // above every target
    const char *out_file, *err_file;
    bool null_stdin, own_group, die_with_parent;
    pid_t parent;
    int report; // write {step, errno} here if something fails
    // Shared between the child and who gives up: either sees what the other has written.
    pid_t pid = 0;
    int given_up = 0;
};

[[noreturn]] SKEIN_IN_CHILD SKEIN_INLINE void child_leaves() {
    while (true) ::syscall(SYS_exit_group, 127);
}

[[noreturn]] SKEIN_IN_CHILD SKEIN_INLINE void child_failed(const child_plan& plan, int step) {
    const int message[2] = {step, errno};
    ::syscall(SYS_write, plan.report, message, sizeof message);
    child_leaves();
}

/// What spawn() throws. Running out of descriptors has a limit with a name.
SKEIN_INLINE error cannot_start(std::string_view executable, std::string_view step, int number) {
    const auto code = number == ENOENT   ? errc::not_found
                      : number == EACCES ? errc::permission_denied
                                         : errc::io;
    error why(code, fmt::format("cannot start {}: {}: {}", executable, step,
                                number == EMFILE ? "too many open files" : std::strerror(number)));
    if (number == EMFILE) why.with_hint("raise the limit of open files: ulimit -n");
    return why;
}

/// Closes (on exec) all descriptors but the standard three.
SKEIN_IN_CHILD SKEIN_INLINE void close_others_on_exec(int first) noexcept {
#ifdef SYS_close_range
    if (::syscall(SYS_close_range, unsigned(first), ~0U, 4U /* CLOSE_RANGE_CLOEXEC */) == 0) return;
#endif
    for (int fd = first; fd < 4096; ++fd) ::syscall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
}

SKEIN_IN_CHILD SKEIN_INLINE void open_over(const child_plan& plan, const char* path, int target,
                                           int flags) {
    const int fd = int(::syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0644));
    if (fd < 0) child_failed(plan, 2);
    // dup3 onto itself is an error, and would keep close-on-exec.
    const long done =
        fd == target ? ::syscall(SYS_fcntl, fd, F_SETFD, 0) : ::syscall(SYS_dup3, fd, target, 0);
    if (done < 0) child_failed(plan, 2);
}

SKEIN_IN_CHILD SKEIN_INLINE void arrange_files(child_plan& plan) {
    close_others_on_exec(3);
    for (std::size_t i = 0; i < plan.fd_count; ++i) {
        auto& source = plan.fds[i].source;
        source = int(::syscall(SYS_fcntl, source, F_DUPFD_CLOEXEC, plan.first_free));
        if (source < 0) child_failed(plan, 1);
    }
    if (plan.null_stdin) open_over(plan, "/dev/null", 0, O_RDONLY);
    if (plan.out_file) open_over(plan, plan.out_file, 1, O_WRONLY | O_CREAT | O_APPEND);
    if (plan.err_file) open_over(plan, plan.err_file, 2, O_WRONLY | O_CREAT | O_APPEND);
    for (std::size_t i = 0; i < plan.fd_count; ++i)
        if (::syscall(SYS_dup3, plan.fds[i].source, plan.fds[i].target, 0) < 0)
            child_failed(plan, 1);
    // Where a standard file of the parent is closed, or the number is one of its sockets, the child gets
    // none of it: what it opened next would take the number, and what it prints would go there.
    for (int fd = 0; fd < 3; ++fd)
        if (const long flags = ::syscall(SYS_fcntl, fd, F_GETFD);
            flags < 0 || (flags & FD_CLOEXEC) != 0)
            open_over(plan, "/dev/null", fd, O_RDWR);
}

/// No handler of this process may run in the child, which has its memory; ignored signals and the mask
/// would survive exec: what ends a program by default does so again.
SKEIN_IN_CHILD SKEIN_INLINE void reset_signals() {
    // As the kernel has it on 64-bit hosts: handler, flags, restorer, mask.
    unsigned long now[4];
    const unsigned long normal[4] = {}; // SIG_DFL
    for (int number = 1; number < 65; ++number) {
        if (::syscall(SYS_rt_sigaction, number, nullptr, now, 8) != 0) continue;
        const bool has_handler = now[0] > 1; // neither SIG_DFL nor SIG_IGN
        if (has_handler || number == SIGPIPE || number == SIGINT || number == SIGTERM)
            ::syscall(SYS_rt_sigaction, number, normal, nullptr, 8);
    }
    const unsigned long none = 0;
    ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, 8);
}

/// Runs in the child; only calls of the kernel.
SKEIN_IN_CHILD SKEIN_INLINE int become(void* order) {
    auto& plan = *static_cast<child_plan*>(order);
    if (plan.own_group) ::syscall(SYS_setpgid, 0, 0);
    if (plan.die_with_parent) {
        ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        // The parent may have died before the line above took effect.
        if (::syscall(SYS_getppid) != plan.parent) child_leaves();
    }
    __atomic_store_n(&plan.pid, pid_t(::syscall(SYS_getpid)), __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&plan.given_up, __ATOMIC_SEQ_CST) != 0) child_leaves();
    arrange_files(plan);
    if (plan.cwd && ::syscall(SYS_chdir, plan.cwd) != 0) child_failed(plan, 3);
    reset_signals();
    ::syscall(SYS_execve, plan.executable, plan.argv, plan.env);
    child_failed(plan, 4);
}

SKEIN_INLINE std::vector<std::string> merged_environment(const process_options& how) {
    auto replaced = [&](std::string_view entry) {
        auto name = entry.substr(0, entry.find('='));
        for (auto& [key, value] : how.env)
            if (key == name) return true;
        for (auto& key : how.unset_env)
            if (key == name) return true;
        return name == last_words_variable;
    };
    std::vector<std::string> out;
    for (char** entry = environ; *entry != nullptr; ++entry)
        if (!replaced(*entry)) out.emplace_back(*entry);
    for (auto& [key, value] : how.env) out.push_back(key + "=" + value);
    return out;
}

SKEIN_INLINE std::vector<char*> c_strings(std::vector<std::string>& strings) {
    std::vector<char*> out;
    for (auto& s : strings) out.push_back(s.data());
    out.push_back(nullptr);
    return out;
}

/// What a start needs until the child has become the other program.
struct start_attempt::parts {
    explicit parts(process_options options);
    [[nodiscard]] pid_t start();
    [[nodiscard]] bool end_start();

    process_options how;
    std::vector<std::string> environment;
    std::vector<char*> env, argv;
    std::vector<passed_file> files;
    unique_fd words_in, words_out, report_in, report_out;
    child_plan plan{};

    std::mutex mutex; // guards returned: before it is set the child is not reaped, its pid its own
    bool returned = false; ///< the thread that started the child goes on
};

SKEIN_INLINE start_attempt::parts::parts(process_options options) : how(std::move(options)) {
    SKEIN_CHECK(!how.argv.empty(), "a process needs argv[0]");
    if (how.executable.empty()) how.executable = how.argv[0];
    int words_target = -1;
    int first_free = 3;
    for (auto& [ours, theirs] : how.fds) first_free = std::max(first_free, theirs + 1);
    if (how.last_words) {
        std::tie(words_in, words_out) = make_pipe();
        words_target = first_free++;
        how.fds.emplace_back(words_out.get(), words_target);
    }
    if (how.stdout_fd >= 0) how.fds.emplace_back(how.stdout_fd, 1);
    if (how.stderr_fd >= 0) how.fds.emplace_back(how.stderr_fd, 2);
    for (auto& [ours, theirs] : how.fds) files.push_back({ours, theirs});

    environment = merged_environment(how);
    if (how.last_words)
        environment.push_back(fmt::format("{}={}", last_words_variable, words_target));
    env = c_strings(environment);
    argv = c_strings(how.argv);
    std::tie(report_in, report_out) = make_pipe();
    // The report must not sit on a number that the child gives to something else.
    report_out.reset(::fcntl(report_out.get(), F_DUPFD_CLOEXEC, first_free));
    if (!report_out) throw cannot_start(how.executable, "report pipe", errno);

    plan.executable = how.executable.c_str();
    plan.argv = argv.data();
    plan.env = env.data();
    plan.cwd = how.cwd.empty() ? nullptr : how.cwd.c_str();
    plan.fds = files.data();
    plan.fd_count = files.size();
    plan.first_free = first_free;
    plan.out_file = how.stdout_file.empty() ? nullptr : how.stdout_file.c_str();
    plan.err_file = how.stderr_file.empty() ? nullptr : how.stderr_file.c_str();
    plan.null_stdin = !how.keep_stdin;
    plan.own_group = how.own_group;
    plan.die_with_parent = how.die_with_parent;
    plan.parent = ::getpid();
    plan.report = report_out.get();
}

/// Gives the pid when the child executes the program, or has ended.
SKEIN_INLINE pid_t start_attempt::parts::start() {
    constexpr std::size_t stack_bytes = std::size_t{64} << 10;
    const auto stack = std::make_unique<std::byte[]>(stack_bytes);
    // No signal handler of ours may run in the child.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    constexpr int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
    void* const top = stack.get() + stack_bytes; // it grows down
#if defined(__GLIBC__)
    const pid_t pid = ::__clone(&become, top, flags, &plan);
#else
    const pid_t pid = ::clone(&become, top, flags, &plan);
#endif
    const int number = errno;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) throw cannot_start(how.executable, "clone", number);
    return pid;
}

/// Nobody kills the child from here on. Gives whether somebody has.
SKEIN_INLINE bool start_attempt::parts::end_start() {
    const std::lock_guard lock(mutex);
    returned = true;
    return __atomic_load_n(&plan.given_up, __ATOMIC_SEQ_CST) != 0;
}

SKEIN_INLINE start_attempt::start_attempt(process_options how)
    : parts_(std::make_unique<parts>(std::move(how))) {}
SKEIN_INLINE start_attempt::~start_attempt() = default;

SKEIN_INLINE void start_attempt::give_up() noexcept {
    const std::lock_guard lock(parts_->mutex);
    __atomic_store_n(&parts_->plan.given_up, 1, __ATOMIC_SEQ_CST);
    const pid_t pid = __atomic_load_n(&parts_->plan.pid, __ATOMIC_SEQ_CST);
    if (pid > 0 && !parts_->returned) ::kill(pid, SIGKILL); // else the child sees it by itself
}

SKEIN_INLINE child_process start_attempt::run() {
    auto& start = *parts_;
    const auto& executable = start.how.executable;
    child_process child;
    child.pid_ = start.start();
    child.own_group_ = start.how.own_group;
    if (start.end_start()) {
        child.kill_group(SIGKILL);
        child.wait_blocking();
        throw error(errc::cancelled, fmt::format("the start of {} was given up", executable));
    }
    // The child has executed the program, or written why not and ended.
    int message[2];
    if (::read(start.report_in.get(), message, sizeof message) == ssize_t(sizeof message)) {
        child.wait_blocking();
        static constexpr std::array steps{"", "pass open files", "open its output file",
                                          "change to its folder", "execute"};
        throw cannot_start(executable, steps.at(std::size_t(message[0])), message[1]);
    }
    child.pidfd_ = unique_fd(int(::syscall(SYS_pidfd_open, child.pid_, 0)));
    if (child.pidfd_.get() < 0 && (errno == EMFILE || errno == ENFILE))
        throw cannot_start(executable, "pidfd_open", errno);
    if (child.pidfd_.get() < 0)
        throw error(errc::not_supported, fmt::format("not supported: pidfd_open: {} (Linux >= 5.3 "
                                                     "is needed)",
                                                     std::strerror(errno)));
    child.words_ = std::move(start.words_in);
    return child;
}

} // namespace skein::rt::detail

#undef SKEIN_IN_CHILD

// ======== skein/wire/decode.hpp
// Bytes to values. The bytes may come from anywhere: nothing throws (but std::bad_alloc), memory is
// bounded by the size of the input and limits::max_memory, and the first fault is told with its
// position.
//
//     auto request = wire::decode<submit>(frame.body);      // result<submit>
//     if (!request) return request.error();
//
// Fields of type std::span<const T> and std::string_view become views into the input: keep it.


// ======== skein/wire/codec.hpp
// Which types travel: the concept `encodable`, and how a type of your own joins in.
//
// Encodable are: bool, integers, float, double, enums, std::byte, strings, vector, array, span of
// fixed-layout elements, map, set and their unordered forms, optional, variant, pair, tuple,
// durations, strong ids, skein::error, result<T>, and plain aggregates of those. Anything else
// specialises codec:
//
//     template <> struct skein::wire::codec<matrix> {
//         static constexpr std::string_view schema = "matrix";
//         static void encode(writer& out, const matrix& m);
//         static result<void> decode(reader& in, matrix& m);
//     };


// ======== skein/core/fields.hpp
// THE door to Boost.PFR: number, references and names of the fields of a plain aggregate.
//
// An aggregate here is a class without constructors, bases, references and C arrays (PFR would
// flatten those: use std::array). Names need a type with linkage: not local to a function, not in
// an unnamed namespace. Names are cut out of the pretty name of a function whose template argument
// points at the field: PFR knows names from 2.2 on (Boost 1.84), but in a header of its own, and one
// way for every version gives one schema hash. g++ 12 ends with an internal error at an array field
// of a type with constructors, unless its default is spelled with parentheses:
// std::array<std::string, 2> names = std::array<std::string, 2>();
//
//     struct point { int x = 0, y = 0; };
//     field_count<point> == 2, field_name<point, 1>() == "y"


#include <cstddef>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <boost/pfr/core.hpp>

namespace skein {

namespace detail {

/// Becomes a base of T, and nothing else.
template <class T>
struct any_base {
    template <class B>
        requires(std::is_base_of_v<B, T> && !std::is_same_v<B, T>)
    operator B() const;
};
/// Bases are initialised first.
template <class T>
concept has_base = requires { T{any_base<T>{}}; };

struct anything {
    template <class V>
    operator V() const;
};
template <class T, std::size_t... Before, std::size_t... After>
consteval bool takes_braces_between(std::index_sequence<Before...>, std::index_sequence<After...>) {
    return requires { T{(void(Before), anything{})..., {}, (void(After), anything{})...}; };
}
/// One pair of braces in the place of the array that starts at element At takes all its elements.
template <class T, std::size_t Count, std::size_t At>
consteval bool array_starts_at() {
    using before = std::make_index_sequence<At>;
    if (takes_braces_between<T>(before{}, std::make_index_sequence<Count - At - 1>{})) return false;
    return []<std::size_t... K>(std::index_sequence<K...>) {
        return (takes_braces_between<T>(before{}, std::make_index_sequence<K>{}) || ...);
    }(std::make_index_sequence<Count - At - 1>{});
}
/// N fields that can each be made from {}: then none is an array. The usual case, answered at once.
template <class T, std::size_t N>
consteval bool takes_braces() {
    // clang-format off
    if constexpr (N < 2) return true;
    else if constexpr (N == 2) return requires { T{{}, {}}; };
    else if constexpr (N == 3) return requires { T{{}, {}, {}}; };
    else if constexpr (N == 4) return requires { T{{}, {}, {}, {}}; };
    else if constexpr (N == 5) return requires { T{{}, {}, {}, {}, {}}; };
    else if constexpr (N == 6) return requires { T{{}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 7) return requires { T{{}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 8) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 9) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 10) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 11) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 12) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 13) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 14) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 15) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else if constexpr (N == 16) return requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; };
    else return false;
    // clang-format on
}
template <class T, std::size_t... I>
consteval bool holds_array(std::index_sequence<I...>) {
    if constexpr (takes_braces<T, sizeof...(I)>())
        return false;
    else
        return (array_starts_at<T, sizeof...(I), I>() || ...);
}

} // namespace detail

/// The number of fields of a plain aggregate.
template <class T>
inline constexpr std::size_t field_count = boost::pfr::tuple_size_v<T>;

namespace detail {
/// PFR would take the elements of a C array for fields.
template <class T>
concept has_array = holds_array<T>(std::make_index_sequence<field_count<T>>{});
} // namespace detail

/// A type whose fields can be listed.
template <class T>
concept plain_aggregate = std::is_aggregate_v<T> && std::is_class_v<T> && !requires {
    std::tuple_size<T>::value;
} && !detail::has_base<T> && !detail::has_array<T>;

/// The type of field I.
template <class T, std::size_t I>
using field_type = boost::pfr::tuple_element_t<I, T>;

/// References to all fields, as a std::tuple.
template <class T>
constexpr auto tie_fields(T& object) noexcept {
    return boost::pfr::structure_tie(object);
}

namespace detail {

template <class T>
struct fields_of_nothing {
    const T value;
};
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-var-template"
#pragma clang diagnostic ignored "-Wundefined-internal"
#endif
/// Declared, never defined: only addresses inside it are named at compile time.
template <class T>
extern const fields_of_nothing<T> fake_object;

template <class Pointer>
struct pointer_value {
    Pointer pointer;
};
template <class Pointer>
pointer_value(Pointer) -> pointer_value<Pointer>;

template <class T, auto Field>
consteval const char* field_pretty_name() {
    return __PRETTY_FUNCTION__;
}

/// The last identifier of "... Field = {&fake_object.value.name}]".
consteval std::string_view last_identifier(std::string_view text) {
    const auto is_word = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_';
    };
    std::size_t end = text.size();
    while (end > 0 && !is_word(text[end - 1])) --end;
    std::size_t begin = end;
    while (begin > 0 && is_word(text[begin - 1])) --begin;
    return text.substr(begin, end - begin);
}
} // namespace detail

/// The name of field I as it is written in the source.
template <class T, std::size_t I>
consteval std::string_view field_name() {
    constexpr auto field = detail::pointer_value{
        std::addressof(std::get<I>(boost::pfr::structure_tie(detail::fake_object<T>.value)))};
    return detail::last_identifier(detail::field_pretty_name<T, field>());
}
#if defined(__clang__)
#pragma clang diagnostic pop
#endif

namespace detail {
struct field_name_probe {
    int first_one = 0;
    double second2 = 0;
};
static_assert(
    field_name<field_name_probe, 0>() == "first_one" &&
        field_name<field_name_probe, 1>() == "second2",
    "this compiler spells __PRETTY_FUNCTION__ in an unknown way: cut the field's name out of it");
} // namespace detail

} // namespace skein

// ======== skein/core/ids.hpp
// Strong ids: a node id is not an actor id, though both are 64 bits.
//
// An id compares, hashes and prints as its value, and nothing else: no arithmetic, no conversion.
//
//     struct blob_tag;
//     using blob_id = skein::strong_id<blob_tag>;


#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

#include <fmt/core.h>

namespace skein {

/// A value of Rep that is only comparable with ids of the same Tag. Zero is "none".
template <class Tag, class Rep = std::uint64_t>
class strong_id {
public:
    using tag_type = Tag;
    using rep = Rep;

    constexpr strong_id() noexcept = default;
    constexpr explicit strong_id(Rep value) noexcept : value_(value) {}

    [[nodiscard]] constexpr Rep value() const noexcept { return value_; }
    /// True unless this is the "none" id.
    constexpr explicit operator bool() const noexcept { return value_ != Rep{}; }
    friend constexpr auto operator<=>(const strong_id&, const strong_id&) = default;

private:
    Rep value_{};
};

/// A number that no two processes give: the incarnation of a process (drawn once for each start of one, so it
/// never returns) and a count in it. It prints as the count.
struct unique_number {
    std::uint64_t incarnation = 0, number = 0;
    friend constexpr auto operator<=>(const unique_number&, const unique_number&) = default;
};

/// A host of a cluster.
using node_id = strong_id<struct node_tag>;
/// A worker process.
using worker_id = strong_id<struct worker_tag>;
/// A task that was submitted.
using task_id = strong_id<struct task_tag>;
/// An actor: who made it, and the how manieth it is there.
using actor_id = strong_id<struct actor_tag, unique_number>;
/// A call of a remote function or method: who made it, and the how manieth it is there.
using call_id = strong_id<struct call_tag, unique_number>;
/// A stored value.
using object_id = strong_id<struct object_tag>;
/// A job, the same for all of its processes.
using job_id = strong_id<struct job_tag>;

} // namespace skein

template <>
struct std::hash<skein::unique_number> {
    std::size_t operator()(const skein::unique_number& n) const noexcept {
        return std::hash<std::uint64_t>{}(n.number * 0x9e3779b97f4a7c15 ^ n.incarnation);
    }
};

template <>
struct fmt::formatter<skein::unique_number> : fmt::formatter<std::uint64_t> {
    template <class Context>
    auto format(const skein::unique_number& n, Context& context) const {
        return fmt::formatter<std::uint64_t>::format(n.number, context);
    }
};

template <class Tag, class Rep>
struct std::hash<skein::strong_id<Tag, Rep>> {
    std::size_t operator()(const skein::strong_id<Tag, Rep>& id) const noexcept {
        return std::hash<Rep>{}(id.value());
    }
};

template <class Tag, class Rep>
struct fmt::formatter<skein::strong_id<Tag, Rep>> : fmt::formatter<Rep> {
    template <class Context>
    auto format(const skein::strong_id<Tag, Rep>& id, Context& context) const {
        return fmt::formatter<Rep>::format(id.value(), context);
    }
};

// ======== skein/wire/reader.hpp
// A cursor over bytes from outside. Nothing is believed: every step checks what is left.
//
// Steps return false on failure; the first failure is kept with its position, and every step after
// it fails too, so that a decoder may check once at the end. The bytes must outlive the reader and
// every view decoded from it.


// ======== skein/wire/limits.hpp
// What a decoder accepts: how deep values nest, how many elements one container may have, and how
// much memory the elements of all containers take. The input alone does not bound the last: one byte
// on the wire may be an element of a kilobyte in memory.


#include <cstddef>

namespace skein::wire {

/// The bounds of one decoder.
struct limits {
    /// Containers, optionals and variants inside each other.
    std::size_t max_depth = 64;
    /// Elements of one container; the bytes that are left bound it as well.
    std::size_t max_elements = static_cast<std::size_t>(-1);
    /// Bytes of memory for the elements of containers in one message. Text and blocks of numbers are
    /// not counted: they take as much as on the wire.
    std::size_t max_memory = std::size_t{1} << 30;
};

} // namespace skein::wire


// ======== skein/wire/reader.hpp, continued
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include <fmt/core.h>

namespace skein::wire {

/// A place in bytes that are owned by somebody else.
class reader {
public:
    explicit reader(byte_span bytes, limits bounds = {}) noexcept
        : begin_(bytes.data()), at_(bytes.data()), end_(bytes.data() + bytes.size()),
          bounds_(bounds) {}

    [[nodiscard]] bool ok() const noexcept { return !error_; }
    [[nodiscard]] std::size_t position() const noexcept {
        return static_cast<std::size_t>(at_ - begin_);
    }
    /// Bytes not read yet; none after a failure.
    [[nodiscard]] std::size_t remaining() const noexcept {
        return static_cast<std::size_t>(end_ - at_);
    }
    [[nodiscard]] byte_span rest() const noexcept { return {at_, remaining()}; }
    [[nodiscard]] const limits& bounds() const noexcept { return bounds_; }

    /// The first failure, or success.
    [[nodiscard]] result<void> status() const {
        if (error_) return *error_;
        return {};
    }
    /// Fails unless everything has been read.
    bool finish() {
        if (remaining() == 0) return ok();
        return fail(errc::malformed, fmt::format("{} bytes left over", remaining()));
    }
    /// Records a failure (the first one counts); always false.
    [[gnu::cold, gnu::noinline]] bool fail(errc code, std::string_view what) {
        if (!error_)
            error_ = error(code, fmt::format("decode failed at byte {} of {}: {}", position(),
                                             end_ - begin_, what));
        at_ = end_;
        return false;
    }
    /// As fail(), for the error of a custom codec.
    [[gnu::cold, gnu::noinline]] bool fail(error e) {
        if (!error_) error_ = std::move(e);
        at_ = end_;
        return false;
    }

    /// The memory of a value: sizeof(T) bytes, little endian.
    template <class T>
        requires std::is_trivially_copyable_v<T>
    bool fixed(T& value) {
        if (remaining() < sizeof(T)) return too_short(sizeof(T));
        std::memcpy(static_cast<void*>(&value), at_, sizeof(T));
        at_ += sizeof(T);
        return true;
    }
    /// A view of the next n bytes.
    bool raw(std::size_t n, byte_span& view) {
        if (remaining() < n) return too_short(n);
        view = byte_span(at_, n);
        at_ += n;
        return true;
    }
    /// A number in groups of seven bits, in its shortest form.
    bool varint(std::uint64_t& value) {
        if (at_ != end_ && (*at_ & std::byte{128}) == std::byte{0}) {
            value = std::to_integer<std::uint64_t>(*at_++);
            return true;
        }
        return long_varint(value);
    }
    /// The number of elements of a container whose elements take at least `least` bytes each:
    /// more of them than the remaining bytes can hold is a failure, found before any allocation.
    bool count(std::size_t least, std::size_t& n) {
        std::uint64_t value = 0;
        if (!varint(value)) return false;
        if (value > remaining() / least || value > bounds_.max_elements)
            return too_many(value, least);
        n = static_cast<std::size_t>(value);
        return true;
    }
    /// Takes n elements of `each` bytes from what the message may use of memory; false if it is more.
    bool charge(std::size_t n, std::size_t each) {
        if (n > (bounds_.max_memory - charged_) / each) return too_much(n, each);
        charged_ += n * each;
        return true;
    }
    /// Skips the zeros up to a multiple of `alignment`.
    bool align(std::size_t alignment) {
        const std::size_t zeros = (0 - position()) & (alignment - 1);
        if (remaining() < zeros) return too_short(zeros);
        for (std::size_t i = 0; i < zeros; ++i, ++at_)
            if (*at_ != std::byte{0}) return fail(errc::malformed, "padding that is not zero");
        return true;
    }
    /// Goes one level deeper; false at the limit. Each success needs a leave().
    bool enter() {
        if (depth_ >= bounds_.max_depth)
            return fail(errc::too_large,
                        fmt::format("values nest deeper than the limit of {}", bounds_.max_depth));
        ++depth_;
        return true;
    }
    void leave() noexcept { --depth_; }

private:
    [[gnu::cold, gnu::noinline]] bool too_short(std::size_t need) {
        return fail(errc::malformed, fmt::format("{} bytes needed, {} left", need, remaining()));
    }
    [[gnu::cold, gnu::noinline]] bool too_many(std::uint64_t n, std::size_t least) {
        if (n > remaining() / least)
            return fail(errc::malformed,
                        fmt::format("{} elements of at least {} bytes do not fit in "
                                    "the {} bytes that follow",
                                    n, least, remaining()));
        return fail(errc::too_large, fmt::format("{} elements are more than the limit of {}", n,
                                                 bounds_.max_elements));
    }
    [[gnu::cold, gnu::noinline]] bool too_much(std::size_t n, std::size_t each) {
        return fail(errc::too_large,
                    fmt::format("{} elements of {} bytes in memory are more than is left of the "
                                "limit of {}",
                                n, each, bounds_.max_memory));
    }
    [[gnu::noinline]] bool long_varint(std::uint64_t& value) {
        std::uint64_t sum = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            if (at_ == end_) return too_short(1);
            const auto group = std::to_integer<std::uint64_t>(*at_++);
            const std::uint64_t bits = group & 127;
            if (shift == 63 && bits > 1) break;
            sum |= bits << shift;
            if ((group & 128) != 0) continue;
            if (bits == 0 && shift > 0) return fail(errc::malformed, "a number longer than needed");
            value = sum;
            return true;
        }
        return fail(errc::malformed, "a number of more than 64 bits");
    }

    const std::byte* begin_;
    const std::byte* at_;
    const std::byte* end_;
    limits bounds_;
    std::size_t depth_ = 0;
    std::size_t charged_ = 0; ///< of bounds_.max_memory; never above it
    std::optional<error> error_;
};

} // namespace skein::wire

// ======== skein/wire/writer.hpp
// A growing buffer that values are encoded into.
//
// The positions that padding refers to count from the first byte of the buffer, so a message and
// what is appended to it later by the same writer are read back by one reader.
//
//     wire::writer out;
//     wire::encode(out, header);
//     wire::encode(out, body);
//     byte_buffer message = std::move(out).take();


#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

namespace skein::wire {

/// Owns the bytes it has written until take().
class writer {
public:
    writer() = default;
    /// Continues after what is in the buffer.
    explicit writer(byte_buffer start) : buffer_(std::move(start)), size_(buffer_.size()) {}
    writer(const writer&) = delete;
    writer& operator=(const writer&) = delete;

    /// Bytes written so far.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] byte_span bytes() const noexcept { return byte_span(buffer_.data(), size_); }
    /// Gives the buffer away; the writer is empty afterwards.
    [[nodiscard]] byte_buffer take() && {
        buffer_.resize(std::exchange(size_, 0));
        return std::move(buffer_);
    }
    /// Makes room for `bytes` more.
    void reserve(std::size_t bytes) {
        if (buffer_.size() - size_ < bytes) grow(bytes);
    }
    /// Starts anew and keeps the memory, unless it is that of a rare large message.
    void clear() noexcept {
        size_ = 0;
        if (buffer_.size() > kept_bytes) buffer_ = byte_buffer();
    }
    static constexpr std::size_t kept_bytes = std::size_t{1} << 20;
    /// The memory it holds.
    [[nodiscard]] std::size_t capacity() const noexcept { return buffer_.capacity(); }

    /// Appends bytes as they are.
    void raw(byte_span bytes) {
        if (buffer_.size() - size_ < bytes.size()) {
            if (bytes.size() >= 4096) { // a large piece: let the vector copy without clearing first
                buffer_.resize(size_);
                buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
                size_ = buffer_.size();
                return;
            }
            grow(bytes.size());
        }
        if (!bytes.empty()) std::memcpy(buffer_.data() + size_, bytes.data(), bytes.size());
        size_ += bytes.size();
    }
    /// Appends the memory of a value: sizeof(T) bytes, little endian.
    template <class T>
        requires std::is_trivially_copyable_v<T>
    void fixed(const T& value) {
        if (buffer_.size() - size_ < sizeof(T)) grow(sizeof(T));
        std::memcpy(buffer_.data() + size_, &value, sizeof(T));
        size_ += sizeof(T);
    }
    /// Appends a number in groups of seven bits, the lowest first: one byte below 128.
    void varint(std::uint64_t value) {
        if (buffer_.size() - size_ < 10) grow(10);
        std::byte* to = buffer_.data() + size_;
        std::byte* const start = to;
        for (; value >= 128; value >>= 7) *to++ = static_cast<std::byte>(value | 128);
        *to++ = static_cast<std::byte>(value);
        size_ += static_cast<std::size_t>(to - start);
    }
    /// Appends zeros up to a multiple of `alignment` (a power of two).
    void align(std::size_t alignment) {
        const std::size_t zeros = (0 - size_) & (alignment - 1);
        if (zeros == 0) return;
        if (buffer_.size() - size_ < zeros) grow(zeros);
        std::memset(buffer_.data() + size_, 0, zeros);
        size_ += zeros;
    }

private:
    [[gnu::noinline]] void grow(std::size_t bytes) {
        buffer_.resize(std::max(size_ + bytes, std::max<std::size_t>(192, buffer_.size() * 2)));
    }

    byte_buffer buffer_; // size() is what may be written to, not what has been written
    std::size_t size_ = 0;
};

} // namespace skein::wire


// ======== skein/wire/codec.hpp, continued
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <ratio>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

namespace skein::wire {

/// The customisation point; specialise it for a type that is not a plain aggregate.
template <class T>
struct codec;

namespace detail {

template <class T, template <class...> class Template>
inline constexpr bool is_a = false;
template <template <class...> class Template, class... Args>
inline constexpr bool is_a<Template<Args...>, Template> = true;

template <class T>
inline constexpr bool is_array = false;
template <class T, std::size_t N>
inline constexpr bool is_array<std::array<T, N>> = true;

template <class T>
inline constexpr bool is_span = false;
template <class T>
inline constexpr bool is_span<std::span<T>> = true;

template <class T>
inline constexpr bool is_id = false;
template <class Tag, class Rep>
inline constexpr bool is_id<strong_id<Tag, Rep>> = true;

template <class T>
inline constexpr bool is_duration = false;
template <class Rep, class Period>
inline constexpr bool is_duration<std::chrono::duration<Rep, Period>> = true;

template <class T>
inline constexpr bool is_text =
    std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>;
template <class T>
inline constexpr bool is_map = is_a<T, std::map> || is_a<T, std::unordered_map>;
template <class T>
inline constexpr bool is_set = is_a<T, std::set> || is_a<T, std::unordered_set>;
template <class T>
inline constexpr bool is_tuple = is_a<T, std::pair> || is_a<T, std::tuple>;

/// An enum of which every value of the underlying integer is a valid one.
template <class T>
consteval bool is_open_enum() {
    if constexpr (std::is_enum_v<T>)
        return requires { T{0}; } && !std::is_same_v<std::underlying_type_t<T>, bool>;
    else
        return false;
}

/// Numbers whose memory is the same on every machine we run on.
template <class T>
inline constexpr bool is_scalar =
    (std::is_arithmetic_v<T> && !std::is_same_v<T, long double> && !std::is_same_v<T, wchar_t>) ||
    is_open_enum<T>();

template <class T>
concept custom = requires(writer& out, const T& in, reader& from, T& into) {
    codec<T>::encode(out, in);
    { codec<T>::decode(from, into) } -> std::same_as<result<void>>;
};

template <class T, class... Others>
inline constexpr bool is_one_of = (std::is_same_v<T, Others> || ...);

/// Calls f.template operator()<Field>() for every field type and combines the bools by "and".
template <class T, class F>
consteval bool all_fields(F f) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
        return (f.template operator()<field_type<T, I>>() && ...);
    }(std::make_index_sequence<field_count<T>>{});
}

/// Fixed layout: encoding a T is copying its memory. Aggregates must have no padding.
template <class T>
consteval bool is_fixed() {
    if constexpr (custom<T> || !std::is_trivially_copyable_v<T>)
        return false;
    else if constexpr (is_scalar<T>)
        return !std::is_same_v<T, bool>;
    else if constexpr (is_id<T> || is_duration<T>)
        return is_fixed<typename T::rep>();
    else if constexpr (is_array<T>)
        return std::tuple_size_v<T> > 0 && is_fixed<typename T::value_type>();
    else if constexpr (is_span<T> || is_text<T> || is_a<T, std::optional> ||
                       is_a<T, std::variant> || is_tuple<T> || std::is_same_v<T, std::monostate>)
        return false;
    else if constexpr (plain_aggregate<T>) {
        if constexpr (field_count<T> == 0)
            return false;
        else
            return all_fields<T>([]<class F>() { return is_fixed<F>(); }) &&
                   []<std::size_t... I>(std::index_sequence<I...>) {
                       return (sizeof(field_type<T, I>) + ...) == sizeof(T);
                   }(std::make_index_sequence<field_count<T>>{});
    } else
        return false;
}

/// `Above` are the aggregates that T is inside of: a tree may hold vectors of itself.
template <class T, class... Above>
consteval bool is_encodable() {
    if constexpr (is_one_of<T, Above...> || custom<T> || is_scalar<T> || is_text<T> ||
                  std::is_same_v<T, std::monostate> || std::is_same_v<T, skein::error>)
        return true;
    else if constexpr (is_id<T> || is_duration<T>)
        return is_scalar<typename T::rep>;
    else if constexpr (is_span<T>)
        return is_fixed<std::remove_cv_t<typename T::element_type>>();
    else if constexpr (is_a<T, std::vector> || is_array<T> || is_set<T> || is_a<T, std::optional>)
        return is_encodable<typename T::value_type, Above...>();
    else if constexpr (is_a<T, result>) {
        if constexpr (std::is_void_v<typename T::value_type>)
            return true;
        else
            return is_encodable<typename T::value_type, Above...>();
    } else if constexpr (is_map<T>)
        return is_encodable<typename T::key_type, Above...>() &&
               is_encodable<typename T::mapped_type, Above...>();
    else if constexpr (is_tuple<T> || is_a<T, std::variant>)
        return []<template <class...> class Template, class... Items>(const Template<Items...>*) {
            return (is_encodable<std::remove_cvref_t<Items>, Above...>() && ...);
        }(static_cast<const T*>(nullptr));
    else if constexpr (plain_aggregate<T>)
        return all_fields<T>([]<class F>() { return is_encodable<F, T, Above...>(); });
    else
        return false;
}

/// A lower bound of the bytes that any T takes on the wire.
template <class T>
consteval std::size_t least_size() {
    if constexpr (custom<T>)
        return 1;
    else if constexpr (std::is_same_v<T, skein::error>)
        return sizeof(errc) + 4;
    else if constexpr (is_scalar<T> || is_id<T> || is_duration<T>)
        return sizeof(T);
    else if constexpr (std::is_same_v<T, std::monostate>)
        return 0;
    else if constexpr (is_array<T>)
        return std::tuple_size_v<T> * least_size<typename T::value_type>();
    else if constexpr (is_tuple<T>)
        return []<template <class...> class Template, class... Items>(const Template<Items...>*) {
            return (std::size_t{0} + ... + least_size<std::remove_cvref_t<Items>>());
        }(static_cast<const T*>(nullptr));
    else if constexpr (is_text<T> || is_span<T> || is_a<T, std::vector> || is_map<T> || is_set<T> ||
                       is_a<T, std::optional> || is_a<T, std::variant> || is_a<T, result>)
        return 1;
    else
        return []<std::size_t... I>(std::index_sequence<I...>) {
            return (std::size_t{0} + ... + least_size<field_type<T, I>>());
        }(std::make_index_sequence<field_count<T>>{});
}

/// Where the elements of a sequence of fixed-layout T start: a multiple of this. Blobs of bytes
/// start at 8, so that messages inside messages keep their alignment.
template <class T>
inline constexpr std::size_t sequence_alignment = std::is_same_v<T, std::byte> ? 8 : alignof(T);

} // namespace detail

/// A type that encode() and decode() know.
template <class T>
concept encodable = detail::is_encodable<std::remove_cvref_t<T>>();

/// A type whose encoding is a copy of its memory; spans of it are viewed in place.
template <class T>
concept fixed_layout = detail::is_fixed<T>();

} // namespace skein::wire


// ======== skein/wire/decode.hpp, continued
#include <algorithm>

namespace skein::wire {

namespace detail {

/// A value to decode into.
template <class T>
T fresh() {
    if constexpr (std::is_same_v<T, skein::error>)
        return skein::error(errc::unknown, "");
    else if constexpr (is_a<T, result> && !std::is_default_constructible_v<T>)
        return T(skein::error(errc::unknown, ""));
    else if constexpr (is_tuple<T> && !std::is_default_constructible_v<T>)
        return []<template <class...> class Template, class... Items>(const Template<Items...>*) {
            return T(fresh<Items>()...);
        }(static_cast<const T*>(nullptr));
    else {
        static_assert(
            std::is_default_constructible_v<T>,
            "a type that is decoded needs a default constructor (or defaults on every field)");
        return T{};
    }
}

template <class T>
bool read(reader& in, T& value);

struct depth_guard {
    explicit depth_guard(reader& from) : in(from), entered(from.enter()) {}
    depth_guard(const depth_guard&) = delete;
    depth_guard& operator=(const depth_guard&) = delete;
    ~depth_guard() {
        if (entered) in.leave();
    }
    reader& in;
    bool entered;
};

inline bool read_bool(reader& in, bool& value) {
    std::uint8_t byte = 0;
    if (!in.fixed(byte)) return false;
    if (byte > 1) return in.fail(errc::malformed, fmt::format("{} is not a truth value", byte));
    value = byte == 1;
    return true;
}

/// The bytes of a sequence of fixed-layout T, still in the input.
template <class T>
bool read_block(reader& in, byte_span& block, std::size_t& n) {
    return in.count(sizeof(T), n) && in.align(sequence_alignment<T>) &&
           in.raw(n * sizeof(T), block);
}

template <class T>
bool is_aligned_for(const std::byte* address) noexcept {
    return reinterpret_cast<std::uintptr_t>(address) % alignof(T) == 0;
}

template <class T>
bool read_vector(reader& in, std::vector<T>& value) {
    value.clear();
    if constexpr (is_fixed<T>()) {
        byte_span block;
        std::size_t n = 0;
        if (!read_block<T>(in, block, n)) return false;
        if (is_aligned_for<T>(block.data())) { // copies once, without clearing first
            const auto* items = reinterpret_cast<const T*>(block.data());
            value.assign(items, items + n);
        } else {
            value.resize(n);
            if (n > 0) std::memcpy(static_cast<void*>(value.data()), block.data(), block.size());
        }
        return true;
    } else {
        static_assert(least_size<T>() > 0, "elements of a container take at least one byte");
        std::size_t n = 0;
        if (!in.count(least_size<T>(), n) || !in.charge(n, sizeof(T))) return false;
        const depth_guard deeper(in);
        if (!deeper.entered) return false;
        // An element in memory may be much larger than on the wire: grow with what has been read.
        value.reserve(std::min<std::size_t>(n, std::max<std::size_t>(1, 4096 / sizeof(T))));
        for (std::size_t i = 0; i < n; ++i) {
            if constexpr (std::is_same_v<T, bool>) {
                bool item = false;
                if (!read_bool(in, item)) return false;
                value.push_back(item);
            } else {
                value.push_back(fresh<T>());
                if (!read(in, value.back())) return false;
            }
        }
        return true;
    }
}

template <class T>
bool read_keyed(reader& in, T& value) {
    using key = typename T::key_type;
    value.clear();
    std::size_t n = 0;
    constexpr auto least = [] {
        if constexpr (is_map<T>)
            return least_size<key>() + least_size<typename T::mapped_type>();
        else
            return least_size<key>();
    }();
    static_assert(least > 0, "elements of a container take at least one byte");
    if (!in.count(least, n)) return false;
    const depth_guard deeper(in);
    if (!deeper.entered) return false;
    constexpr std::size_t node = sizeof(typename T::value_type) + 4 * sizeof(void*);
    for (std::size_t i = 0; i < n; ++i) {
        if (!in.charge(1, node)) return false;
        auto k = fresh<key>();
        if (!read(in, k)) return false;
        bool is_new = false;
        if constexpr (is_map<T>) {
            auto mapped = fresh<typename T::mapped_type>();
            if (!read(in, mapped)) return false;
            is_new = value.emplace(std::move(k), std::move(mapped)).second;
        } else {
            is_new = value.insert(std::move(k)).second;
        }
        if (!is_new) return in.fail(errc::malformed, "a key that was there already");
    }
    return true;
}

template <class T, std::size_t I = 0>
bool read_alternative(reader& in, std::size_t index, T& value) {
    if constexpr (I == std::variant_size_v<T>) {
        return in.fail(errc::malformed, fmt::format("{} is not one of {} kinds", index, I));
    } else {
        if (index != I) return read_alternative<T, I + 1>(in, index, value);
        auto held = fresh<std::variant_alternative_t<I, T>>();
        if (!read(in, held)) return false;
        value.template emplace<I>(std::move(held));
        return true;
    }
}

inline bool read_error(reader& in, skein::error& value) {
    errc code{};
    std::string text, where, cause, hint;
    constexpr std::size_t parts = 256; // what an error keeps on the heap
    if (!in.charge(1, parts)) return false;
    if (!in.fixed(code) || !read(in, text) || !read(in, where) || !read(in, cause) ||
        !read(in, hint))
        return false;
    value = skein::error(code, std::move(text));
    if (!where.empty()) value.with_where(std::move(where));
    if (!cause.empty()) value.with_cause(std::move(cause));
    if (!hint.empty()) value.with_hint(std::move(hint));
    return true;
}

template <class T>
bool read_result(reader& in, T& value) {
    bool has_value = false;
    if (!read_bool(in, has_value)) return false;
    if (!has_value) {
        auto e = fresh<skein::error>();
        if (!read_error(in, e)) return false;
        value = T(std::move(e));
    } else if constexpr (std::is_void_v<typename T::value_type>) {
        value = T{};
    } else {
        const depth_guard deeper(in);
        auto held = fresh<typename T::value_type>();
        if (!deeper.entered || !read(in, held)) return false;
        value = T(std::move(held));
    }
    return true;
}

template <class T>
bool read_span(reader& in, T& value) {
    using item = std::remove_const_t<typename T::element_type>;
    static_assert(std::is_const_v<typename T::element_type>,
                  "decode into std::span<const T>: the view points into the input");
    static_assert(alignof(item) <= 8, "views are aligned to 8 bytes at most");
    byte_span block;
    std::size_t n = 0;
    if (!read_block<item>(in, block, n)) return false;
    if (!is_aligned_for<item>(block.data()))
        return in.fail(errc::invalid_argument, "the input does not start at a multiple of 8 in "
                                               "memory, so its elements cannot be viewed in place; "
                                               "decode into a vector");
    value = T(reinterpret_cast<const item*>(block.data()), n);
    return true;
}

template <class T>
bool read(reader& in, T& value) {
    if constexpr (custom<T>) {
        if (auto done = codec<T>::decode(in, value); !done) return in.fail(done.error());
        return in.ok();
    } else if constexpr (std::is_same_v<T, skein::error>) {
        return read_error(in, value);
    } else if constexpr (std::is_same_v<T, bool>) {
        return read_bool(in, value);
    } else if constexpr (is_fixed<T>()) {
        return in.fixed(value);
    } else if constexpr (is_text<T>) {
        byte_span block;
        std::size_t n = 0;
        if (!read_block<char>(in, block, n)) return false;
        value = as_text(block);
        return true;
    } else if constexpr (is_span<T>) {
        return read_span(in, value);
    } else if constexpr (is_a<T, std::vector>) {
        return read_vector(in, value);
    } else if constexpr (is_array<T>) {
        return std::all_of(value.begin(), value.end(), [&](auto& item) { return read(in, item); });
    } else if constexpr (is_map<T> || is_set<T>) {
        return read_keyed(in, value);
    } else if constexpr (is_a<T, std::optional>) {
        bool has_value = false;
        if (!read_bool(in, has_value)) return false;
        value.reset();
        if (!has_value) return true;
        const depth_guard deeper(in);
        if (!deeper.entered) return false;
        value.emplace(fresh<typename T::value_type>());
        return read(in, *value);
    } else if constexpr (is_a<T, result>) {
        return read_result(in, value);
    } else if constexpr (is_a<T, std::variant>) {
        std::uint8_t index = 0;
        const depth_guard deeper(in);
        return deeper.entered && in.fixed(index) && read_alternative(in, index, value);
    } else if constexpr (is_tuple<T>) {
        return std::apply([&](auto&... items) { return (read(in, items) && ...); }, value);
    } else if constexpr (std::is_same_v<T, std::monostate>) {
        return true;
    } else {
        return std::apply([&](auto&... fields) { return (read(in, fields) && ...); },
                          tie_fields(value));
    }
}

} // namespace detail

/// Reads the next value; `into` is unspecified (but valid) after a failure.
template <encodable T>
result<void> decode(reader& in, T& into) {
    detail::read(in, into);
    return in.status();
}

/// Reads the next value.
template <encodable T>
result<T> decode(reader& in) {
    static_assert(!std::is_same_v<T, skein::error>,
                  "decode an error into an object: decode(in, e)");
    auto value = detail::fresh<T>();
    if (!detail::read(in, value)) return in.status().error();
    return value;
}

/// Decodes a whole message; bytes left over are malformed.
template <encodable T>
result<void> decode(byte_span bytes, T& into, limits bounds = {}) {
    reader in(bytes, bounds);
    if (detail::read(in, into)) in.finish();
    return in.status();
}

/// Decodes a whole message; bytes left over are malformed.
template <encodable T>
result<T> decode(byte_span bytes, limits bounds = {}) {
    static_assert(!std::is_same_v<T, skein::error>,
                  "decode an error into an object: decode(bytes, e)");
    reader in(bytes, bounds);
    auto value = detail::fresh<T>();
    if (detail::read(in, value) && in.finish()) return value;
    return in.status().error();
}

} // namespace skein::wire


// ======== skein/rt/detail/boot.ipp, continued
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// What this process was started with: read once, taken once.
struct inherited_boot {
    bool is_child = false;
    std::optional<boot> mine;
    std::optional<error> unreadable;
    std::atomic_flag taken = ATOMIC_FLAG_INIT;
};

SKEIN_INLINE result<boot> read_boot(std::string_view number) {
    int inherited = -1; // never a standard file: reading from a terminal would wait for ever
    std::from_chars(number.data(), number.data() + number.size(), inherited);
    const unique_fd file(inherited < boot_file ? -1 : inherited);
    byte_buffer text;
    std::byte piece[4096];
    for (ssize_t n = 0; (n = ::read(file.get(), piece, sizeof piece)) > 0;)
        append(text, byte_span(piece, static_cast<std::size_t>(n)));
    auto got = wire::decode<boot_message>(text);
    if (!got)
        return error(errc::malformed, "the boot message of this process cannot be read")
            .with_hint(
                fmt::format("{} is set by skein for its children only: unset it", boot_variable));
    boot mine;
    mine.role = std::move(got->role);
    mine.name = std::move(got->name);
    mine.message = std::move(got->message);
    if (got->socket >= 0 && ::fcntl(got->socket, F_SETFD, FD_CLOEXEC) == 0)
        mine.socket = unique_fd(got->socket);
    if (got->memory >= 0 && ::fcntl(got->memory, F_SETFD, FD_CLOEXEC) == 0)
        mine.memory = shared_memory::open(unique_fd(got->memory));
    return mine;
}

SKEIN_INLINE inherited_boot& boot_of_this_process() {
    static inherited_boot here;
    static const bool read = [] {
        adopt_last_words();
        const char* number = std::getenv(boot_variable);
        if (number == nullptr) return false;
        here.is_child = true;
        auto got = [number]() -> result<boot> {
            try {
                return read_boot(number);
            } catch (const error& e) {
                return e;
            }
        }();
        if (got)
            here.mine = std::move(*got);
        else
            here.unreadable = got.error();
        ::unsetenv(boot_variable);
        return true;
    }();
    (void)read;
    return here;
}

} // namespace detail

SKEIN_INLINE bool started_as(std::string_view role) noexcept {
    static const std::string mine = [] { // the role stays known when the boot has been taken
        const auto& here = detail::boot_of_this_process();
        return here.mine ? here.mine->role : std::string();
    }();
    const auto& here = detail::boot_of_this_process();
    return here.unreadable || (here.is_child && mine == role);
}

SKEIN_INLINE std::optional<boot> take_boot(std::string_view role) {
    if (!started_as(role)) return std::nullopt;
    auto& here = detail::boot_of_this_process();
    if (here.unreadable) throw *here.unreadable;
    if (here.taken.test_and_set()) return std::nullopt;
    return std::move(here.mine);
}

} // namespace skein::rt


// ======== skein/cluster/detail/environment.ipp, continued
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

/// Variables that are this process's alone: a supervisor's boot message, and what was taken from the
/// environment. Written before there are threads, then only read.
SKEIN_INLINE std::map<std::string, std::string>& own_variables() {
    static auto mine = [] {
        const auto boot = rt::take_boot(rank_role);
        return boot ? wire::decode<std::map<std::string, std::string>>(boot->message).value()
                    : std::map<std::string, std::string>();
    }();
    return mine;
}

} // namespace detail

SKEIN_INLINE void take_launch_variables() {
    auto& mine = detail::own_variables();
    for (const char* name :
         {"SKEIN_RANK", "SKEIN_WORLD_SIZE", "SKEIN_LOCAL_RANK", "SKEIN_LOCAL_SIZE", "SKEIN_ATTEMPT",
          "SKEIN_JOB_ID", "SKEIN_MASTER_HOST", "SKEIN_MASTER_PORT", "SKEIN_GROUP", "SKEIN_TOKEN"}) {
        if (const char* value = std::getenv(name)) mine.try_emplace(name, value);
        ::unsetenv(name);
    }
}

SKEIN_INLINE variable_reader process_environment() {
    return [](std::string_view name) -> std::optional<std::string> {
        const auto& mine = detail::own_variables();
        if (const auto found = mine.find(std::string(name)); found != mine.end())
            return found->second;
        const char* value = std::getenv(std::string(name).c_str());
        if (value == nullptr) return std::nullopt;
        return std::string(value);
    };
}

namespace detail {

/// Variables of one launcher, with errors that name them.
class variables {
public:
    variables(const variable_reader& read, std::string launcher)
        : read_(read), launcher_(std::move(launcher)) {}

    [[nodiscard]] bool has(std::string_view name) const { return read_(name).has_value(); }
    [[nodiscard]] std::string text(std::string_view name, std::string fallback = {}) const {
        return read_(name).value_or(std::move(fallback));
    }
    [[nodiscard]] std::string need(std::string_view name) const {
        auto value = read_(name);
        if (!value || value->empty()) {
            throw error(
                errc::invalid_argument,
                fmt::format("this looks like a {} launch, but {} is not set", launcher_, name))
                .with_hint(fmt::format("set {}, or unset the other {} variables", name, launcher_));
        }
        return *value;
    }
    [[nodiscard]] int number(std::string_view name) const { return parse(name, need(name)); }
    [[nodiscard]] int number(std::string_view name, int fallback) const {
        auto value = read_(name);
        return value && !value->empty() ? parse(name, *value) : fallback;
    }
    /// The first of the names that is set.
    [[nodiscard]] int first_number(std::initializer_list<std::string_view> names) const {
        for (auto name : names) {
            if (has(name)) return number(name);
        }
        return number(*names.begin());
    }

private:
    int parse(std::string_view name, const std::string& value) const {
        int out = 0;
        const auto [end, fault] = std::from_chars(value.data(), value.data() + value.size(), out);
        if (fault != std::errc{} || end != value.data() + value.size() || out < 0) {
            throw error(
                errc::invalid_argument,
                fmt::format("{}='{}' ({} launch) is not a number >= 0", name, value, launcher_));
        }
        return out;
    }
    const variable_reader& read_;
    std::string launcher_;
};

/// A port for rank 0 that all ranks of a job compute alike; above the well-known, below the ephemeral.
SKEIN_INLINE int port_of_job(std::string_view job) noexcept {
    fnv1a hash;
    hash.text(job);
    return 20000 + static_cast<int>(hash.value() % 10000);
}

SKEIN_INLINE std::optional<launch_environment> from_skein(const variable_reader& read) {
    const variables v(read, "skein");
    if (!v.has("SKEIN_RANK")) return std::nullopt;
    launch_environment e;
    e.source = "skein";
    e.rank = v.number("SKEIN_RANK");
    e.world_size = v.number("SKEIN_WORLD_SIZE");
    e.local_rank = v.number("SKEIN_LOCAL_RANK", e.rank);
    e.local_size = v.number("SKEIN_LOCAL_SIZE", e.world_size);
    e.attempt = v.number("SKEIN_ATTEMPT", 0);
    e.master_host = v.text("SKEIN_MASTER_HOST");
    e.master_port = v.number("SKEIN_MASTER_PORT", 0);
    e.job_id = v.text("SKEIN_JOB_ID");
    return e;
}

SKEIN_INLINE std::optional<launch_environment> from_torch(const variable_reader& read) {
    const variables v(read, "torchrun");
    if (!v.has("RANK") || v.has("JOB_COMPLETION_INDEX")) return std::nullopt;
    if (!v.has("WORLD_SIZE") && !v.has("MASTER_ADDR")) return std::nullopt; // somebody else's RANK
    launch_environment e;
    e.source = "torch";
    e.rank = v.number("RANK");
    e.world_size = v.number("WORLD_SIZE");
    e.local_rank = v.number("LOCAL_RANK", 0);
    e.local_size = v.number("LOCAL_WORLD_SIZE", 1);
    e.attempt = v.number("TORCHELASTIC_RESTART_COUNT", 0);
    e.master_host = v.need("MASTER_ADDR");
    e.master_port = v.number("MASTER_PORT");
    // The agent's own store listens on MASTER_PORT then; ours takes the next one.
    if (v.text("TORCHELASTIC_USE_AGENT_STORE") == "True") ++e.master_port;
    e.job_id = v.text("TORCHELASTIC_RUN_ID");
    return e;
}

/// The entry of one node in Slurm's "2(x3),1".
SKEIN_INLINE int tasks_on_node(std::string_view text, int node) {
    int at = 0;
    while (!text.empty()) {
        const auto comma = text.find(',');
        const auto part = text.substr(0, comma);
        int tasks = 0, times = 1;
        std::from_chars(part.data(), part.data() + part.size(), tasks);
        if (const auto open = part.find("(x"); open != std::string_view::npos) {
            std::from_chars(part.data() + open + 2, part.data() + part.size(), times);
        }
        if (node < at + times) return tasks;
        at += times;
        if (comma == std::string_view::npos) break;
        text.remove_prefix(comma + 1);
    }
    return 1;
}

SKEIN_INLINE std::optional<launch_environment> from_slurm(const variable_reader& read) {
    const variables v(read, "Slurm");
    if (!v.has("SLURM_PROCID") || !v.has("SLURM_STEP_ID")) return std::nullopt;
    launch_environment e;
    e.source = "slurm";
    e.rank = v.number("SLURM_PROCID");
    e.world_size = v.first_number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
    e.local_rank = v.number("SLURM_LOCALID", 0);
    const int node = v.number("SLURM_NODEID", 0);
    e.local_size = v.has("SLURM_STEP_TASKS_PER_NODE")
                       ? tasks_on_node(v.text("SLURM_STEP_TASKS_PER_NODE"), node)
                       : tasks_on_node(v.text("SLURM_TASKS_PER_NODE", "1"), node);
    e.attempt = v.number("SLURM_RESTART_COUNT", 0);
    e.job_id = v.need("SLURM_JOB_ID") + "." + v.need("SLURM_STEP_ID");
    auto nodes = v.text("SLURM_STEP_NODELIST");
    if (nodes.empty()) nodes = v.need("SLURM_JOB_NODELIST");
    const auto hosts = expand_hostlist(nodes);
    if (!hosts.empty()) e.master_host = hosts.front();
    e.master_port = v.number("SKEIN_MASTER_PORT", port_of_job(e.job_id));
    return e;
}

SKEIN_INLINE std::optional<launch_environment> from_kubernetes(const variable_reader& read) {
    const variables v(read, "Kubernetes indexed job");
    if (!v.has("JOB_COMPLETION_INDEX")) return std::nullopt;
    if (!v.has("WORLD_SIZE") && !v.has("MASTER_ADDR")) return std::nullopt; // a job of its own each
    launch_environment e;
    e.source = "kubernetes";
    e.rank = v.number("JOB_COMPLETION_INDEX");
    e.world_size = v.number("WORLD_SIZE");
    e.master_host = v.need("MASTER_ADDR");
    e.master_port = v.number("MASTER_PORT");
    e.job_id = v.text("JOB_NAME");
    return e;
}

SKEIN_INLINE std::optional<launch_environment> from_openmpi(const variable_reader& read) {
    const variables v(read, "Open MPI");
    if (!v.has("OMPI_COMM_WORLD_RANK")) return std::nullopt;
    launch_environment e;
    e.source = "openmpi";
    e.rank = v.number("OMPI_COMM_WORLD_RANK");
    e.world_size = v.number("OMPI_COMM_WORLD_SIZE");
    e.local_rank = v.number("OMPI_COMM_WORLD_LOCAL_RANK", 0);
    e.local_size = v.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
    e.job_id = v.text("PMIX_NAMESPACE", v.text("OMPI_MCA_ess_base_jobid"));
    e.master_host = v.text("SKEIN_MASTER_HOST", v.text("MASTER_ADDR"));
    e.master_port = v.number("SKEIN_MASTER_PORT", v.number("MASTER_PORT", port_of_job(e.job_id)));
    return e;
}

SKEIN_INLINE std::optional<launch_environment> from_pmi(const variable_reader& read) {
    const variables v(read, "MPI (PMI)");
    if (!v.has("PMI_RANK")) return std::nullopt;
    launch_environment e;
    e.source = "pmi";
    e.rank = v.number("PMI_RANK");
    e.world_size = v.number("PMI_SIZE");
    e.local_rank = v.number("MPI_LOCALRANKID", 0);
    e.local_size = v.number("MPI_LOCALNRANKS", 1);
    e.master_host = v.text("SKEIN_MASTER_HOST", v.text("MASTER_ADDR"));
    // PMI names no job that all ranks agree on, so job_id stays empty: PMI_ID differs by rank.
    e.master_port = v.number("SKEIN_MASTER_PORT", v.number("MASTER_PORT", port_of_job("pmi")));
    return e;
}

/// The texts of a JSON list of host names, ["algo-1", "algo-2"]; empty when it is anything else. Host names need
/// no escapes, and this layer no JSON library.
SKEIN_INLINE std::vector<std::string> json_names(std::string_view text) {
    std::vector<std::string> out;
    const auto skip = [&] {
        text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    };
    const auto take = [&](char wanted) {
        skip();
        if (!text.starts_with(wanted)) return false;
        text.remove_prefix(1);
        return true;
    };
    if (!take('[')) return {};
    do {
        if (!take('"')) return {};
        const auto end = text.find_first_of("\"\\");
        if (end == std::string_view::npos || text[end] != '"') return {};
        out.emplace_back(text.substr(0, end));
        text.remove_prefix(end + 1);
    } while (take(','));
    const bool closed = take(']');
    skip();
    if (!closed || !text.empty()) out.clear();
    return out;
}

SKEIN_INLINE std::optional<launch_environment> from_sagemaker(const variable_reader& read) {
    const variables v(read, "SageMaker");
    if (!v.has("SM_HOSTS")) return std::nullopt;
    const auto hosts = json_names(v.need("SM_HOSTS"));
    const auto here = v.need("SM_CURRENT_HOST");
    launch_environment e;
    e.source = "sagemaker";
    e.rank = -1;
    for (std::size_t i = 0; i < hosts.size(); ++i) {
        if (hosts[i] == here) e.rank = static_cast<int>(i);
    }
    if (e.rank < 0) {
        throw error(
            errc::invalid_argument,
            fmt::format("SM_HOSTS='{}' (SageMaker launch) is no list with SM_CURRENT_HOST='{}'",
                        v.text("SM_HOSTS"), here));
    }
    e.world_size = static_cast<int>(hosts.size());
    e.master_host = hosts[0];
    e.master_port = v.number("SKEIN_MASTER_PORT", 29500);
    e.job_id = v.text("TRAINING_JOB_NAME");
    return e;
}

SKEIN_INLINE std::optional<launch_environment> from_skypilot(const variable_reader& read) {
    const variables v(read, "SkyPilot");
    if (!v.has("SKYPILOT_NODE_RANK")) return std::nullopt;
    launch_environment e;
    e.source = "skypilot";
    e.rank = v.number("SKYPILOT_NODE_RANK");
    e.world_size = v.number("SKYPILOT_NUM_NODES");
    const auto addresses = v.need("SKYPILOT_NODE_IPS");
    e.master_host = addresses.substr(0, addresses.find('\n'));
    e.master_port = v.number("SKEIN_MASTER_PORT", 29500);
    e.job_id = v.text("SKYPILOT_TASK_ID");
    return e;
}

} // namespace detail

SKEIN_INLINE launch_environment discover(const variable_reader& read) {
    for (auto* row : {&detail::from_skein, &detail::from_torch, &detail::from_slurm,
                      &detail::from_kubernetes, &detail::from_openmpi, &detail::from_pmi,
                      &detail::from_sagemaker, &detail::from_skypilot}) {
        auto found = row(read);
        if (!found) continue;
        if (found->world_size < 1 || found->rank >= found->world_size) {
            throw error(errc::invalid_argument,
                        fmt::format("{} launch: rank {} of {}", found->source, found->rank,
                                    found->world_size))
                .with_hint("the launcher's variables contradict each other");
        }
        return *found;
    }
    return {};
}

SKEIN_INLINE std::vector<std::string> expand_hostlist(std::string_view text) {
    std::vector<std::string> hosts;
    while (!text.empty()) {
        // One entry ends at a comma that is outside brackets.
        std::size_t end = 0;
        for (bool inside = false; end < text.size() && (inside || text[end] != ','); ++end) {
            if (text[end] == '[') inside = true;
            if (text[end] == ']') inside = false;
        }
        const auto entry = text.substr(0, end);
        text.remove_prefix(end < text.size() ? end + 1 : end);
        const auto open = entry.find('[');
        const auto close = entry.find(']');
        if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
            if (!entry.empty()) hosts.emplace_back(entry);
            continue;
        }
        auto ranges = entry.substr(open + 1, close - open - 1);
        while (!ranges.empty()) {
            const auto comma = ranges.find(',');
            const auto range = ranges.substr(0, comma);
            ranges.remove_prefix(comma == std::string_view::npos ? ranges.size() : comma + 1);
            const auto dash = range.find('-');
            const auto low = range.substr(0, dash);
            const auto high = dash == std::string_view::npos ? low : range.substr(dash + 1);
            int from = 0, to = -1;
            std::from_chars(low.data(), low.data() + low.size(), from);
            std::from_chars(high.data(), high.data() + high.size(), to);
            for (int i = from; i <= to && hosts.size() < 65536; ++i) {
                hosts.push_back(fmt::format("{}{:0{}}{}", entry.substr(0, open), i, low.size(),
                                            entry.substr(close + 1)));
            }
        }
    }
    return hosts;
}

} // namespace skein::cluster


// ======== skein/cluster/detail/token_file.hpp, continued
#include <string>

namespace skein::cluster::detail {

/// Its text.
///   errors  not_found, permission_denied (others may read it), invalid_argument (no regular file), io
[[nodiscard]] std::string read_token_file(const std::string& path);
/// Makes the file with a new token unless another process is first.
void make_token_file(const std::string& path);
/// ~/.config/skein/token, as XDG_CONFIG_HOME and HOME say; empty: neither is set.
[[nodiscard]] std::string own_token_file(const variable_reader& read);

} // namespace skein::cluster::detail

// ======== skein/cluster/meeting.hpp
// Where the ranks of a launched world meet, and with which secret.
//
// Under a supervisor both come from it. Under srun, mpirun or torchrun rank 0 hosts the group at an
// address every rank computes alike, and the secret is the user's own: SKEIN_TOKEN, SKEIN_TOKEN_FILE, or
// ~/.config/skein/token, made on first use, which hosts with a common home folder share.


namespace skein::cluster {

/// Variables a supervisor gives its ranks besides SKEIN_RANK and its like.
inline constexpr const char* group_variable =
    "SKEIN_GROUP"; ///< address of the supervisor's group server
inline constexpr const char* token_variable = "SKEIN_TOKEN"; ///< 64 hexadecimal digits

/// True in a rank that a skein supervisor has started: the supervisor serves the group and reports.
[[nodiscard]] bool is_supervised(const variable_reader& read = process_environment());

/// Where the group server of this world is (or, for rank 0, is to be). All ranks on one host meet on
/// loopback.
///   errors  invalid_argument: ranks on several hosts and nobody says where rank 0 is
[[nodiscard]] net::address meeting_point(const launch_environment& where,
                                         const variable_reader& read = process_environment());

/// What rank 0 listens on: the meeting point, on all interfaces when other hosts have to reach it.
[[nodiscard]] net::address listening_point(const launch_environment& where,
                                           const variable_reader& read = process_environment());

/// The secret of this world.
///   errors  permission_denied: the token file is readable by others; invalid_argument: it is no token;
///           io: it cannot be made
[[nodiscard]] net::token group_token(const variable_reader& read = process_environment());

} // namespace skein::cluster


// ======== skein/cluster/detail/meeting.ipp
// The token file and the addresses of cluster/meeting.hpp.


#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE bool is_supervised(const variable_reader& read) {
    return read(group_variable).has_value() && read("SKEIN_RANK").has_value();
}

SKEIN_INLINE net::address meeting_point(const launch_environment& where,
                                        const variable_reader& read) {
    if (const auto given = read(group_variable)) return net::address::parse(*given).value();
    const bool one_host = where.local_size == where.world_size;
    if (where.master_port <= 0 || where.master_port > 65535) {
        throw error(errc::invalid_argument, fmt::format("{} launch: no usable port for rank 0 ({})",
                                                        where.source, where.master_port))
            .with_hint("set SKEIN_MASTER_PORT to a free port, the same for all ranks");
    }
    if (one_host)
        return net::address::tcp("127.0.0.1", static_cast<std::uint16_t>(where.master_port));
    if (where.master_host.empty()) {
        throw error(errc::invalid_argument,
                    fmt::format("{} launch over several hosts, but nobody says where rank 0 is",
                                where.source))
            .with_hint("set SKEIN_MASTER_HOST to the host of rank 0, the same for all ranks");
    }
    return net::address::tcp(where.master_host, static_cast<std::uint16_t>(where.master_port));
}

SKEIN_INLINE net::address listening_point(const launch_environment& where,
                                          const variable_reader& read) {
    auto at = meeting_point(where, read);
    if (!at.is_loopback()) at.host = "*"; // whichever of IPv6 and IPv4 the others come by
    return at;
}

namespace detail {

SKEIN_INLINE std::string read_token_file(const std::string& path) {
    // A pipe in its place must not make us wait for a writer.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        const auto code = errno == ENOENT   ? errc::not_found
                          : errno == EACCES ? errc::permission_denied
                                            : errc::io;
        throw error(code, fmt::format("open token file {}: {}", path, std::strerror(errno)));
    }
    const unique_fd file(fd);
    struct stat info{};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        throw error(errc::invalid_argument, fmt::format("token file {} is no regular file", path));
    }
    char text[256];
    const auto n = ::read(fd, text, sizeof text);
    if ((info.st_mode & 077) != 0) {
        throw error(errc::permission_denied,
                    fmt::format("token file {} can be read by others (mode {:o})", path,
                                info.st_mode & 0777))
            .with_hint(fmt::format(
                "chmod 600 {}; if others may have read it, delete it: a new one is made", path));
    }
    return std::string(text, n > 0 ? static_cast<std::size_t>(n) : 0);
}

/// Makes the file with a new token unless another process is first.
SKEIN_INLINE void make_token_file(const std::string& path) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    const auto draft = fmt::format("{}.{}.{:x}", path, ::getpid(), system_random().next());
    const int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        throw error(errc::io, fmt::format("make token file {}: {}", path, std::strerror(errno)))
            .with_hint("set SKEIN_TOKEN or SKEIN_TOKEN_FILE instead");
    }
    const auto text = net::token::generate().to_hex() + "\n";
    const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::close(fd);
    // link() is the atomic "create with content": exactly one of several ranks succeeds.
    if (written) [[maybe_unused]]
        const int linked = ::link(draft.c_str(), path.c_str());
    ::unlink(draft.c_str());
}

SKEIN_INLINE std::string own_token_file(const variable_reader& read) {
    if (const auto config = read("XDG_CONFIG_HOME"); config && !config->empty())
        return *config + "/skein/token";
    const auto home = read("HOME");
    return home && !home->empty() ? *home + "/.config/skein/token" : std::string();
}

} // namespace detail

SKEIN_INLINE net::token group_token(const variable_reader& read) {
    if (const auto given = read(token_variable)) return net::token::from_hex(*given).value();
    std::string path;
    if (const auto file = read("SKEIN_TOKEN_FILE")) {
        path = *file;
        return net::token::from_hex(detail::read_token_file(path)).value();
    }
    path = detail::own_token_file(read);
    if (path.empty()) {
        throw error(errc::not_found,
                    "no token for this world: neither SKEIN_TOKEN, SKEIN_TOKEN_FILE nor HOME "
                    "is set")
            .with_hint("set SKEIN_TOKEN to the same 64 hexadecimal digits for all ranks");
    }
    if (!std::filesystem::exists(path)) detail::make_token_file(path);
    auto secret = net::token::from_hex(detail::read_token_file(path));
    if (!secret) {
        throw error(errc::invalid_argument,
                    fmt::format("token file {}: {}", path, secret.error().text()))
            .with_hint("delete it: a new one is made on the next run");
    }
    return *secret;
}

} // namespace skein::cluster


// ======== skein/cluster/detail/access.ipp, continued
#include <filesystem>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE net::address parse_head_address(std::string_view text) {
    const auto bad = [&](std::string_view why) {
        return error(errc::usage, fmt::format("the head's address {}: {}", text, why))
            .with_hint(fmt::format("e.g. node-1:{0}, 10.0.0.1, [fd00::1]:{0}", default_port));
    };
    for (const std::string_view prefix : {"tcp:", "unix:", "unix-abstract:", "sim:"}) {
        if (!text.starts_with(prefix)) continue;
        auto read = net::address::parse(text);
        if (!read) throw bad(read.error().text());
        return *read;
    }
    const bool has_port =
        text.starts_with('[') ? text.find("]:") != text.npos : text.find(':') != text.npos;
    auto read = net::address::parse(has_port ? fmt::format("tcp:{}", text)
                                             : fmt::format("tcp:{}:{}", text, default_port));
    if (!read) throw bad(read.error().text());
    return *read;
}

SKEIN_INLINE std::string find_head_address(std::string_view flag) {
    if (!flag.empty()) return std::string(flag);
    return process_environment()("SKEIN_ADDRESS").value_or("");
}

namespace detail {

[[nodiscard]] inline net::token token_in(const std::string& path) {
    auto read = net::token::from_hex(read_token_file(path));
    if (read) return *read;
    throw error(errc::malformed, fmt::format("token file {}: {}", path, read.error().text()))
        .with_hint("a token is 64 hexadecimal digits; skein head makes one when there is no file");
}

} // namespace detail

SKEIN_INLINE std::string token_source(const std::string& file) {
    const auto read = process_environment();
    if (!file.empty()) return file;
    if (read(token_variable)) return "SKEIN_TOKEN";
    return read("SKEIN_TOKEN_FILE").value_or(detail::own_token_file(read));
}

SKEIN_INLINE net::token find_token(const std::string& file) {
    const auto where = token_source(file);
    const auto read = process_environment();
    if (!file.empty()) return detail::token_in(file);
    if (!read(token_variable) && !read("SKEIN_TOKEN_FILE") && !std::filesystem::exists(where))
        throw error(errc::not_found, "no token for the cluster: there is no file " + where)
            .with_hint("copy the token file of the head's host to the same place here (skein head "
                       "prints its name), or set SKEIN_TOKEN_FILE");
    return group_token(read);
}

SKEIN_INLINE net::token find_or_make_token(const std::string& file) {
    if (file.empty()) return group_token();
    if (!std::filesystem::exists(file)) detail::make_token_file(file);
    return detail::token_in(file);
}

} // namespace skein::cluster

// ======== skein/cluster/group.hpp
// A group: the ranks of one training world, who meet, exchange small blobs, and learn at once when one
// of them is lost.
//
// One group_server (in the supervisor, or beside rank 0) and one group_client per rank, over ordinary
// connections, in either world. A group forms once, with every rank present, and ends once: when all
// ranks have left, or when the first of them is lost. Then every other rank is told who and why. A new
// attempt is a new group with the next generation.
//
//   joining --all there--> running --all left--> ended
//      \--deadline--------------\--rank lost or failed, abort()--> failed, with culprit and reason


// ======== skein/cluster/settings.hpp
// Settings that every rank of a world must have alike (rate, batch, seed, ...), compared by value so
// that a difference is named and not trained into two models.
//
//     std::vector<setting> mine{{"seed", "1"}, {"lr", "0.003"}};
//     require_same(world, "optimizer", mine);     // mismatch: rank 1 has lr 0.1, rank 0 has 0.003


// ======== skein/cluster/rendezvous.hpp
// What a rank needs to know of its world before it can communicate: who is there, and a way to
// exchange small blobs (addresses, shared-memory names, hashes).
//
// The training layers see only this interface. cluster::joined_group implements it over the control
// connection of a rank; sim::local_world implements it for threads of one process.


// ======== skein/cluster/loss_listeners.hpp
// Who wants to know that a rank is lost: any number of listeners, each until its subscription ends.
//
//     loss_listeners losses;
//     auto watching = losses.add([&](int rank, const error& why) { abort(rank, why); });
//     losses.tell(3, why);      // on any thread; once
//     watching.reset();         // from here on the listener does not run


// ======== skein/core/function.hpp
// unique_function: std::function for callables that can only be moved.
//
// Small callables (up to 48 bytes, nothrow-movable) live inside; others on the heap. Calling an empty
// one is a bug and is checked.


#include <cstddef>
#include <functional>
#include <new>
#include <type_traits>
#include <utility>

namespace skein {

/// Defined for signatures `R(Args...)` only.
template <class Signature>
class unique_function;

/// A callable owned by value. Move-only; empty after being moved from.
template <class R, class... Args>
class unique_function<R(Args...)> {
public:
    unique_function() noexcept = default;
    unique_function(std::nullptr_t) noexcept {}

    template <class F>
        requires(!std::is_same_v<std::remove_cvref_t<F>, unique_function> &&
                 std::is_invocable_r_v<R, std::remove_cvref_t<F>&, Args...>)
    unique_function(F&& f) {
        using callable = std::remove_cvref_t<F>;
        if constexpr (fits<callable>) {
            ::new (static_cast<void*>(storage_)) callable(std::forward<F>(f));
            ops_ = &inside<callable>;
        } else {
            ::new (static_cast<void*>(storage_)) callable*(new callable(std::forward<F>(f)));
            ops_ = &outside<callable>;
        }
    }

    unique_function(unique_function&& other) noexcept { take(other); }
    unique_function& operator=(unique_function&& other) noexcept {
        if (this != &other) {
            reset();
            take(other);
        }
        return *this;
    }
    ~unique_function() { reset(); }

    explicit operator bool() const noexcept { return ops_ != nullptr; }

    R operator()(Args... args) {
        SKEIN_CHECK(ops_ != nullptr, "an empty unique_function was called");
        return ops_->call(storage_, std::forward<Args>(args)...);
    }

private:
    struct operations {
        R (*call)(void*, Args&&...);
        void (*move)(void* from, void* to) noexcept;
        void (*destroy)(void*) noexcept;
    };
    static constexpr std::size_t capacity = 48;
    template <class F>
    static constexpr bool fits = sizeof(F) <= capacity && alignof(F) <= alignof(std::max_align_t) &&
                                 std::is_nothrow_move_constructible_v<F>;

    template <class F>
    static R invoke(F& f, Args&&... args) {
        if constexpr (std::is_void_v<R>) {
            std::invoke(f, std::forward<Args>(args)...);
        } else {
            return std::invoke(f, std::forward<Args>(args)...);
        }
    }
    template <class F>
    static constexpr operations inside{[](void* p, Args&&... args) -> R {
                                           return invoke(*static_cast<F*>(p),
                                                         std::forward<Args>(args)...);
                                       },
                                       [](void* from, void* to) noexcept {
                                           ::new (to) F(std::move(*static_cast<F*>(from)));
                                           static_cast<F*>(from)->~F();
                                       },
                                       [](void* p) noexcept { static_cast<F*>(p)->~F(); }};
    template <class F>
    static constexpr operations outside{
        [](void* p, Args&&... args) -> R {
            return invoke(**static_cast<F**>(p), std::forward<Args>(args)...);
        },
        [](void* from, void* to) noexcept { ::new (to) F*(*static_cast<F**>(from)); },
        [](void* p) noexcept { delete *static_cast<F**>(p); }};

    void take(unique_function& other) noexcept {
        if (other.ops_ == nullptr) return;
        other.ops_->move(other.storage_, storage_);
        ops_ = std::exchange(other.ops_, nullptr);
    }
    void reset() noexcept {
        if (ops_ != nullptr) std::exchange(ops_, nullptr)->destroy(storage_);
    }

    const operations* ops_ = nullptr;
    alignas(std::max_align_t) std::byte storage_[capacity];
};

} // namespace skein

// ======== skein/core/time.hpp
// Monotonic time, the only time that decides anything. Wall time is for logs (core/clock.hpp).
//
// A loop says what time it is: real loops read the system's monotonic clock once per turn, simulated
// loops count virtual time from zero.


#include <chrono>
#include <cstdint>

namespace skein {

/// Lengths of time, in nanoseconds.
using duration = std::chrono::nanoseconds;

/// A tag for time points of loops. It has no now(): ask loop::now().
struct monotonic_clock {
    using rep = std::int64_t;
    using period = std::nano;
    using duration = skein::duration;
    using time_point = std::chrono::time_point<monotonic_clock>;
    static constexpr bool is_steady = true;
};

/// A point in the time of a loop or clock.
using time_point = monotonic_clock::time_point;

/// `from` + `length`, or the end of time where that is beyond it: a wait may be duration::max().
[[nodiscard]] constexpr time_point deadline_after(time_point from, duration length) noexcept {
    std::int64_t sum = 0;
    if (__builtin_add_overflow(from.time_since_epoch().count(), length.count(), &sum))
        return length.count() > 0 ? time_point::max() : time_point::min();
    return time_point(duration(sum));
}

/// Seconds as a double, for rates and messages.
[[nodiscard]] constexpr double to_seconds(duration d) noexcept {
    return std::chrono::duration<double>(d).count();
}

} // namespace skein


// ======== skein/cluster/loss_listeners.hpp, continued
#include <memory>
#include <utility>

namespace skein::cluster {

/// A listener is heard while this lives. It may outlive what it listens to.
class [[nodiscard]] subscription {
public:
    subscription() = default;
    explicit subscription(unique_function<void()> end) : end_(std::move(end)) {}
    subscription(subscription&& other) noexcept : end_(std::move(other.end_)) {}
    subscription& operator=(subscription&& other) noexcept {
        reset();
        end_ = std::move(other.end_);
        return *this;
    }
    ~subscription() { reset(); }

    /// Ends it: when this returns the listener has ended and does not run again. The listener itself may
    /// call it.
    void reset() noexcept {
        if (!end_) return;
        auto end = std::move(end_);
        end();
    }
    [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(end_); }

private:
    unique_function<void()> end_;
};

/// The listeners of one world and the loss they wait for. Every member may be called on any thread.
class loss_listeners {
public:
    using listener = unique_function<void(int rank, const error& why)>;

    loss_listeners();

    /// The listener runs once: on the thread that calls tell(), or here and now if that has happened.
    [[nodiscard]] subscription add(listener told);
    /// Says who is lost. Only the first call counts: what is lost later is mostly an echo.
    void tell(int rank, const error& why);
    /// Blocks until tell(), at most so long; false if nothing was told.
    [[nodiscard]] bool wait(duration limit);

private:
    struct state;
    std::shared_ptr<state> state_;
};

} // namespace skein::cluster


// ======== skein/cluster/detail/loss_listeners.ipp
// Listeners run under the lock: that is what makes the end of a subscription final. The lock is
// recursive, so that a listener may end its own.

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace skein::cluster {

struct loss_listeners::state {
    std::recursive_mutex mutex; // guards all
    std::condition_variable_any told;
    std::vector<std::shared_ptr<listener>> listeners;
    std::optional<std::pair<int, error>> lost;

    void remove(const std::shared_ptr<listener>& which) {
        const std::lock_guard lock(mutex);
        std::erase(listeners, which);
    }
};

SKEIN_INLINE loss_listeners::loss_listeners() : state_(std::make_shared<state>()) {}

SKEIN_INLINE subscription loss_listeners::add(listener told) {
    auto added = std::make_shared<listener>(std::move(told));
    const std::lock_guard lock(state_->mutex);
    if (state_->lost) {
        (*added)(state_->lost->first, state_->lost->second);
        return {};
    }
    state_->listeners.push_back(added);
    return subscription([of = state_, added] { of->remove(added); });
}

SKEIN_INLINE void loss_listeners::tell(int rank, const error& why) {
    const std::lock_guard lock(state_->mutex);
    if (state_->lost) return;
    state_->lost.emplace(rank, why);
    state_->told.notify_all();
    const auto all = state_->listeners; // a listener may end its own or another subscription
    for (const auto& each : all) {
        const bool here = std::find(state_->listeners.begin(), state_->listeners.end(), each) !=
                          state_->listeners.end();
        if (here) (*each)(rank, why);
    }
}

SKEIN_INLINE bool loss_listeners::wait(duration limit) {
    std::unique_lock lock(state_->mutex);
    return state_->told.wait_for(lock, limit, [&] { return state_->lost.has_value(); });
}

} // namespace skein::cluster


// ======== skein/cluster/rendezvous.hpp, continued
#include <string>
#include <string_view>
#include <vector>

namespace skein::cluster {

/// One rank's view of its world. Blocking; called on the compute thread.
class rendezvous {
public:
    rendezvous() = default;
    rendezvous(const rendezvous&) = delete;
    rendezvous& operator=(const rendezvous&) = delete;
    virtual ~rendezvous() = default;

    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int world_size() const = 0;
    [[nodiscard]] virtual int local_rank() const = 0;
    [[nodiscard]] virtual int local_size() const = 0;
    /// Grows with every restart of the group; messages of an older generation mean nothing.
    [[nodiscard]] virtual int generation() const = 0;
    /// The same text for all ranks of one host.
    [[nodiscard]] virtual std::string host() const = 0;

    /// Gives every rank's blob in rank order. All ranks call it with the same keys in the same order; a
    /// key is used once.
    ///   errors  peer_lost (names the rank), timeout, too_large
    virtual std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) = 0;

    /// The secret of this world, for the connections that ranks make among themselves.
    [[nodiscard]] virtual net::token secret() const = 0;

    /// `lost` is called once, on the control thread, when another rank is lost or fails: abort what waits
    /// for it. It is called here and now if that has happened. Any number may listen, each until its
    /// subscription ends.
    [[nodiscard]] virtual subscription on_lost(loss_listeners::listener lost) = 0;
};

} // namespace skein::cluster


// ======== skein/cluster/settings.hpp, continued
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::cluster {

/// One of them. The text of a number is made by one function on all ranks (fmt's "{}").
struct setting {
    std::string name;
    std::string value;

    friend bool operator==(const setting&, const setting&) = default;
};

/// One number for all of them, names and order included; the same on every machine.
[[nodiscard]] std::uint64_t hash_of(const std::vector<setting>& settings);

/// What differs between two ranks, as errc::mismatch that names the settings and both values; nothing
/// when they are alike.
[[nodiscard]] std::optional<error> difference(int rank, const std::vector<setting>& theirs,
                                              int reference, const std::vector<setting>& ours);

/// Every rank calls it with the same key (see rendezvous::exchange): returns when all settings are alike.
///   errors  mismatch on every rank, about the first rank that differs from rank 0; those of exchange()
void require_same(rendezvous& world, std::string_view key, const std::vector<setting>& mine);

} // namespace skein::cluster


// ======== skein/cluster/detail/settings.ipp
// Comparing settings: few of them, so that a plain search will do.


// ======== skein/wire/encode.hpp
// Values to bytes. The format is in docs/wire.md: little endian, no type information, lengths as
// variable-length numbers; schema.hpp hashes the shape so that both sides can compare it first.
//
//     byte_buffer message = wire::encode(request);


namespace skein::wire {

template <encodable T>
void encode(writer& out, const T& value);

namespace detail {

template <class T>
void encode_sequence(writer& out, const T* items, std::size_t n) {
    out.varint(n);
    if constexpr (is_fixed<T>()) {
        out.align(sequence_alignment<T>);
        out.raw({reinterpret_cast<const std::byte*>(items), n * sizeof(T)});
    } else {
        for (std::size_t i = 0; i < n; ++i) encode(out, items[i]);
    }
}

inline void encode_error(writer& out, const skein::error& e) {
    out.fixed(e.code());
    for (const auto* part : {&e.text(), &e.where(), &e.cause(), &e.hint()})
        encode_sequence(out, part->data(), part->size());
}

} // namespace detail

/// Appends one value. Throws nothing but std::bad_alloc.
template <encodable T>
void encode(writer& out, const T& value) {
    if constexpr (detail::custom<T>) {
        codec<T>::encode(out, value);
    } else if constexpr (std::is_same_v<T, skein::error>) {
        detail::encode_error(out, value);
    } else if constexpr (std::is_same_v<T, bool>) {
        out.fixed(static_cast<std::uint8_t>(value ? 1 : 0));
    } else if constexpr (detail::is_fixed<T>()) {
        out.fixed(value);
    } else if constexpr (detail::is_text<T> || detail::is_span<T>) {
        detail::encode_sequence(out, value.data(), value.size());
    } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
        out.varint(value.size());
        for (const bool item : value) encode(out, item);
    } else if constexpr (detail::is_a<T, std::vector>) {
        detail::encode_sequence(out, value.data(), value.size());
    } else if constexpr (detail::is_array<T>) {
        for (const auto& item : value) encode(out, item);
    } else if constexpr (detail::is_map<T>) {
        out.varint(value.size());
        for (const auto& [key, mapped] : value) {
            encode(out, key);
            encode(out, mapped);
        }
    } else if constexpr (detail::is_set<T>) {
        out.varint(value.size());
        for (const auto& item : value) encode(out, item);
    } else if constexpr (detail::is_a<T, std::optional>) {
        encode(out, value.has_value());
        if (value) encode(out, *value);
    } else if constexpr (detail::is_a<T, result>) {
        encode(out, value.has_value());
        if (!value)
            detail::encode_error(out, value.error());
        else if constexpr (!std::is_void_v<typename T::value_type>)
            encode(out, *value);
    } else if constexpr (detail::is_a<T, std::variant>) {
        static_assert(std::variant_size_v<T> <= 256, "a variant on the wire has at most 256 kinds");
        out.fixed(static_cast<std::uint8_t>(value.index()));
        std::visit([&](const auto& held) { encode(out, held); }, value);
    } else if constexpr (detail::is_tuple<T>) {
        std::apply([&](const auto&... items) { (encode(out, items), ...); }, value);
    } else if constexpr (!std::is_same_v<T, std::monostate>) {
        std::apply([&](const auto&... fields) { (encode(out, fields), ...); }, tie_fields(value));
    }
}

/// One value as a message of its own.
template <encodable T>
[[nodiscard]] byte_buffer encode(const T& value) {
    writer out;
    encode(out, value);
    return std::move(out).take();
}

} // namespace skein::wire


// ======== skein/cluster/detail/settings.ipp, continued
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE std::uint64_t hash_of(const std::vector<setting>& settings) {
    fnv1a hash;
    for (const auto& s : settings) {
        for (const auto* text : {&s.name, &s.value}) {
            hash.number(text->size()); // "ab" "c" is not "a" "bc"
            hash.text(*text);
        }
    }
    return hash.value();
}

namespace detail {

[[nodiscard]] SKEIN_INLINE const setting* find_setting(const std::vector<setting>& in,
                                                       const std::string& name) {
    const auto at =
        std::find_if(in.begin(), in.end(), [&](const auto& s) { return s.name == name; });
    return at == in.end() ? nullptr : &*at;
}

} // namespace detail

SKEIN_INLINE std::optional<error> difference(int rank, const std::vector<setting>& theirs,
                                             int reference, const std::vector<setting>& ours) {
    if (theirs == ours) return std::nullopt;
    constexpr std::size_t most = 4; // named in one line
    std::vector<std::string> found;
    const auto compare = [&](const std::string& name) {
        const auto* left = detail::find_setting(theirs, name);
        const auto* right = detail::find_setting(ours, name);
        if (left != nullptr && right != nullptr && left->value == right->value) return;
        found.push_back(fmt::format("rank {} has {} {}, rank {} has {}", rank, name,
                                    left != nullptr ? left->value : "not at all", reference,
                                    right != nullptr ? right->value : "none"));
    };
    for (const auto& s : ours) compare(s.name);
    for (const auto& s : theirs) {
        if (detail::find_setting(ours, s.name) == nullptr) compare(s.name);
    }
    if (found.empty()) found.push_back(fmt::format("rank {} has them in another order", rank));
    std::string text = "the ranks' settings differ: ";
    for (std::size_t i = 0; i < found.size() && i < most; ++i)
        text += (i > 0 ? "; " : "") + found[i];
    if (found.size() > most) text += fmt::format("; and {} more", found.size() - most);
    return error(errc::mismatch, std::move(text))
        .with_hint("start every rank with the same options");
}

SKEIN_INLINE void require_same(rendezvous& world, std::string_view key,
                               const std::vector<setting>& mine) {
    if (world.world_size() == 1) return;
    const auto all = world.exchange(key, wire::encode(mine));
    const auto first = wire::decode<std::vector<setting>>(all.front()).value();
    for (std::size_t r = 1; r < all.size(); ++r) {
        if (all[r] == all.front()) continue;
        const auto other = wire::decode<std::vector<setting>>(all[r]).value();
        if (auto why = difference(static_cast<int>(r), other, 0, first)) throw *why;
    }
}

} // namespace skein::cluster

// ======== skein/core/constants.hpp
// The table of time constants and default limits. net::limits, net::keep_alive, net::reconnect_policy
// and the options of the layers above take their defaults from it.
//
// The values are for hosts in one network.


#include <chrono>
#include <cstddef>
#include <cstdint>

namespace skein {

/// Waits and pauses of all layers; lan() gives those for hosts in one network.
struct time_constants {
    using ms = std::chrono::milliseconds;

    ms group_heartbeat{100};  ///< inside a training group
    ms agent_heartbeat{500};  ///< between head and agents, and idle connections
    ms suspect_after{1000};   ///< silence after which a peer is suspected
    ms dead_after{3000};      ///< silence after which a peer is dead
    ms stalled_after{10'000}; ///< with no byte taken, after which a peer we do not hear is given up
    ms connect_timeout{5000}; ///< one attempt
    ms handshake_timeout{5000};
    ms start_timeout{120000}; ///< for a process to load its program, before the first byte from it
    ms close_timeout{2000};   ///< for what is queued and the peer's goodbye
    ms reconnect_first{50};   ///< delay before the second attempt; doubles up to reconnect_most
    ms reconnect_most{2000};
    ms accept_pause{100};       ///< after a failed accept
    ms accept_grace{20};        ///< no stream is dropped for another one before
    ms refusal_line{10'000};    ///< at most one log line per kind of refused stream in this time
    ms shutdown_grace{2000};    ///< from the request to stop until the kill
    ms farewell_first{100};     ///< for a process to end by itself when its link has ended
    ms farewell_stopping{300};  ///< the same when it was told to
    ms child_restart_first{50}; ///< before a worker is started again; doubles
    ms child_restart_most{60000};
    ms rendezvous_timeout{60000};
    ms join_first{5}; ///< before a second attempt to join: ranks of a host start together; doubles
    ms join_most{250};
    ms still_waiting{10'000};  ///< for ranks that have not joined, until a line says for which
    ms job_restart_first{200}; ///< before a job's ranks are started again; doubles
    ms crash_grace{1000};      ///< for the other ranks to see a loss and leave
    ms last_word{50};          ///< for news on its way, or the kernel to clear a dead process away
    ms stop_grace{30'000};     ///< from a request to stop a group of ranks until the kill
    ms training_stop_grace{300'000}; ///< a step, an evaluation and a checkpoint must fit in
    ms echo_wait{1000}; ///< after a broken collective, for news of the loss that broke it
    /// Minutes, as users of other libraries expect: a rank may compile kernels, read a cold disk or save
    /// while the others wait. Dead processes are noticed at once, without it.
    ms collective_timeout{300'000};
    ms checkpoint_timeout{1'800'000}; ///< the same around reads and writes of whole checkpoints
    ms ring_late_again{50};           ///< a second look before a neighbour is called late
    ms ring_grace_least{500};         ///< after the deadline, for news of who is late further away
    ms ring_grace_most{2000};
    ms ring_news{300};          ///< after a broken link, for the cause further away
    ms ring_notice{500};        ///< to write an error or a goodbye to one neighbour
    ms ring_farewell{1000};     ///< for both notices, at close
    ms shm_look{20};            ///< between looks whether the processes of the others live
    ms unwaited_collective{10}; ///< until its loop ends a small one nobody waits for

    [[nodiscard]] static constexpr time_constants lan() noexcept { return {}; }
};

/// Exit codes of every program built with skein.
namespace exit_code {
/// It did what was asked; it failed; its command line is wrong. 128 + n: ended by signal n.
inline constexpr int done = 0, failed = 1, usage = 2;
} // namespace exit_code

/// Default size limits; each has an option where it is used.
namespace limit {
inline constexpr std::size_t frame_bytes = std::size_t{1} << 30;   ///< one frame's body
inline constexpr std::size_t queue_bytes = std::size_t{64} << 20;  ///< a connection's, each way
inline constexpr std::size_t inline_bytes = std::size_t{64} << 10; ///< values kept inside messages
inline constexpr std::size_t gather_bytes = std::size_t{4} << 10;  ///< from here on sent uncopied
inline constexpr std::size_t backlog_bytes = std::size_t{4} << 20; ///< calls a worker reads ahead
/// Plain calls run so long in a row before their replies leave and new frames are read.
inline constexpr std::chrono::milliseconds call_turn{5};
} // namespace limit

} // namespace skein

// ======== skein/core/event.hpp
// event: a flag one can wait for. Manual reset; one loop.


// ======== skein/core/wait.hpp
// The leaf of every wait: a waiter is one suspended coroutine; a wait_queue is a line of them.
//
// A waiter ends exactly once, by wake() or by cancellation, and its coroutine is then resumed through
// the run queue of the loop it waits on. This is the tool that event, mutex, channel and the protocols
// are made of; programs rarely need it.


// ======== skein/core/cancel.hpp
// Cooperative cancellation.
//
// A cancel_source asks; the tasks that run under its token notice at their next await that has to
// wait: that await throws error(errc::cancelled), and so does every later one, so that the task unwinds.
// What was awaited stays usable (a mutex, channel or stream is not harmed, nothing it held is lost).
// A value that had already been handed over is delivered, not dropped. Everything happens on the
// loop's thread; a source is not thread-safe.
//
//     cancel_source stop;
//     auto work = with_cancel(stop.token(), serve(connection));   // elsewhere: stop.request();
//     co_await std::move(work);


// ======== skein/core/intrusive_list.hpp
// A doubly linked list whose links live inside its elements: no allocation, O(1) removal from
// anywhere. Elements derive from list_node<Tag>; a node unlinks itself when it is destroyed.


namespace skein {

template <class T, class Tag>
class intrusive_list;

/// The links of one element in lists of one Tag. Neither copyable nor movable.
template <class Tag>
class list_node {
public:
    list_node() noexcept = default;
    list_node(const list_node&) = delete;
    list_node& operator=(const list_node&) = delete;
    ~list_node() { unlink(); }

    [[nodiscard]] bool is_linked() const noexcept { return next_ != nullptr; }

    /// Leaves its list, if it is in one.
    void unlink() noexcept {
        if (next_ == nullptr) return;
        prev_->next_ = next_;
        next_->prev_ = prev_;
        prev_ = next_ = nullptr;
    }

private:
    template <class, class>
    friend class intrusive_list;
    list_node* prev_ = nullptr;
    list_node* next_ = nullptr;
};

/// A list of T, which derives from list_node<Tag>. Does not own its elements.
template <class T, class Tag>
class intrusive_list {
    using node = list_node<Tag>;

public:
    intrusive_list() noexcept { head_.prev_ = head_.next_ = &head_; }
    intrusive_list(const intrusive_list&) = delete;
    intrusive_list& operator=(const intrusive_list&) = delete;
    ~intrusive_list() {
        while (!empty()) head_.next_->unlink();
        head_.prev_ = head_.next_ = nullptr;
    }

    [[nodiscard]] bool empty() const noexcept { return head_.next_ == &head_; }
    [[nodiscard]] T& front() noexcept { return static_cast<T&>(*head_.next_); }

    /// Appends; the element must not be linked.
    void push_back(T& element) noexcept {
        node& n = element;
        n.prev_ = head_.prev_;
        n.next_ = &head_;
        head_.prev_->next_ = &n;
        head_.prev_ = &n;
    }
    /// Unlinks and returns the first element. The list must not be empty.
    T& pop_front() noexcept {
        T& first = front();
        static_cast<node&>(first).unlink();
        return first;
    }
    /// Moves all elements of other to the end of this list, in order.
    void splice_back(intrusive_list& other) noexcept {
        if (other.empty()) return;
        node* first = other.head_.next_;
        node* last = other.head_.prev_;
        other.head_.prev_ = other.head_.next_ = &other.head_;
        first->prev_ = head_.prev_;
        head_.prev_->next_ = first;
        last->next_ = &head_;
        head_.prev_ = last;
    }
    /// Calls f(element) for each; f must not change the list.
    template <class F>
    void for_each(F f) {
        for (node* n = head_.next_; n != &head_; n = n->next_) f(static_cast<T&>(*n));
    }
    /// The same until f says false; true if all were seen.
    template <class F>
    bool for_each_while(F f) {
        for (node* n = head_.next_; n != &head_; n = n->next_)
            if (!f(static_cast<T&>(*n))) return false;
        return true;
    }

private:
    node head_;
};

} // namespace skein

// ======== skein/core/task.hpp
// task<T>: a lazy coroutine that gives one T, an exception, or nothing.
//
// It starts when it is awaited or spawned into a scope, runs on the loop of its awaiter and never
// changes threads. The awaiter is resumed inside the same loop turn, right after the task ends.
// Awaits go through a trampoline (detail below), so a million tasks that finish at once neither
// overflow the stack nor depend on tail calls. Frames are pooled.
//
//     task<int> answer() { co_return 42; }
//     task<void> app()   { auto t = answer(); int x = co_await std::move(t); }
//
// Name it, then await it: g++ 12 destroys aggregates and capturing lambdas that are temporaries of a
// co_await expression twice (docs/traps.md).


// ======== skein/core/frame_pool.hpp
// Coroutine frames come from per-thread free lists by size class: about 5 ns instead of a malloc.
//
// A frame may be freed on another thread than it was made on; it then joins that thread's lists, which
// are bounded. SKEIN_FRAME_POOL (core/config.hpp) turns the pool off, as AddressSanitizer does.


#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

namespace skein::detail {

/// The free frames of one thread, in classes of 64 bytes up to 2 KiB.
class frame_pool {
public:
    static void* allocate(std::size_t bytes) {
        const std::size_t size_class = class_of(bytes);
        if (SKEIN_FRAME_POOL && size_class < classes && !closed_) {
            if (auto* frame = lists_[size_class]) {
                lists_[size_class] = frame->next;
                --kept_[size_class];
                return frame;
            }
            return ::operator new((size_class + 1) * granularity);
        }
        return ::operator new(bytes);
    }
    static void release(void* p, std::size_t bytes) noexcept {
        const std::size_t size_class = class_of(bytes);
        if (SKEIN_FRAME_POOL && size_class < classes && !closed_ && kept_[size_class] < most_kept) {
            if (kept_[size_class]++ == 0) arm();
            auto* frame = static_cast<free_frame*>(p);
            frame->next = lists_[size_class];
            lists_[size_class] = frame;
            return;
        }
        ::operator delete(p);
    }

    /// How many free frames of a class a thread keeps at most; further ones go back to the heap.
    static constexpr std::uint32_t most_kept = 1024;
    /// Free frames of this size that the calling thread keeps.
    [[nodiscard]] static std::size_t kept(std::size_t bytes) noexcept {
        return kept_[class_of(bytes)];
    }

private:
    struct free_frame {
        free_frame* next;
    };
    static constexpr std::size_t granularity = 64;
    static constexpr std::size_t classes = 32;
    static constexpr std::size_t class_of(std::size_t bytes) noexcept {
        return (bytes - 1) / granularity;
    }

    /// Frees this thread's lists when the thread ends.
    struct closer {
        ~closer() {
            closed_ = true;
            for (auto*& list : lists_) {
                while (list != nullptr) {
                    auto* next = list->next;
                    ::operator delete(static_cast<void*>(list));
                    list = next;
                }
            }
        }
    };
    static void arm() {
        static thread_local closer at_thread_end;
        (void)at_thread_end;
    }

    static inline constinit thread_local std::array<free_frame*, classes> lists_{};
    static inline constinit thread_local std::array<std::uint32_t, classes> kept_{};
    static inline constinit thread_local bool closed_ = false;
};

} // namespace skein::detail

// ======== skein/core/task_context.hpp
// task_context: what a task belongs to, handed down to all that it awaits and spawns, as its cancellation is.
//
// core knows that there is such a thing, not what it holds: the runtime derives the context of a call from it
// (which process's runtime, which call, until when). So two runtimes can live on one thread, and a call that a
// task makes is known as its child, without thread-local state that must be set and reset by hand.
//
//     auto work = with_context(context, body());      // body and all below it run under `context`
//     co_await work;
//     task_context* mine = task_context::current();   // in any function that a task calls


// ======== skein/core/counted_ptr.hpp
// counted_ptr<T>: a pointer to something that counts its users itself, and ends with the last one.
//
// T has add_use() and drop_use(). The count is not atomic: everything that shares it belongs to one loop.


#include <concepts>
#include <utility>

namespace skein {

/// A use of a T, or none. One pointer wide.
template <class T>
class counted_ptr {
public:
    counted_ptr() noexcept = default;
    explicit counted_ptr(T* p) noexcept : p_(p) {
        if (p_ != nullptr) p_->add_use();
    }
    counted_ptr(const counted_ptr& other) noexcept : counted_ptr(other.p_) {}
    counted_ptr(counted_ptr&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
    template <class U>
        requires std::derived_from<U, T>
    counted_ptr(const counted_ptr<U>& other) noexcept : counted_ptr(other.get()) {}
    counted_ptr& operator=(counted_ptr other) noexcept {
        std::swap(p_, other.p_);
        return *this;
    }
    ~counted_ptr() {
        if (p_ != nullptr) p_->drop_use();
    }

    [[nodiscard]] T* get() const noexcept { return p_; }
    T* operator->() const noexcept { return p_; }
    T& operator*() const noexcept { return *p_; }
    explicit operator bool() const noexcept { return p_ != nullptr; }
    friend bool operator==(const counted_ptr&, const counted_ptr&) = default;

private:
    T* p_ = nullptr;
};

} // namespace skein


// ======== skein/core/task_context.hpp, continued
#include <cstdint>

namespace skein {

class task_context;

namespace detail {
/// The context of the coroutine that runs on this thread; nullptr outside of one, and under none.
inline constinit thread_local task_context* current_context = nullptr;
} // namespace detail

/// Counted by those who run under it: a spawned task may outlive the one that spawned it. One loop.
class task_context {
public:
    /// `kind` tells apart what is derived: the address of something that each such class has.
    explicit task_context(const void* kind) noexcept : kind_(kind) {}
    task_context(const task_context&) = delete;
    task_context& operator=(const task_context&) = delete;

    /// Of the task that runs now on this thread; nullptr outside of tasks and under none.
    [[nodiscard]] static task_context* current() noexcept { return detail::current_context; }

    [[nodiscard]] const void* kind() const noexcept { return kind_; }
    void add_use() noexcept { ++uses_; }
    void drop_use() noexcept {
        if (--uses_ == 0) delete this;
    }
    [[nodiscard]] std::uint32_t uses() const noexcept { return uses_; }

    /// Makes it the current one of this thread while it lives, for plain functions that a task or a handler calls.
    class use {
    public:
        explicit use(task_context* c) noexcept : before_(detail::current_context) {
            detail::current_context = c;
        }
        use(const use&) = delete;
        use& operator=(const use&) = delete;
        ~use() { detail::current_context = before_; }

    private:
        task_context* before_;
    };

protected:
    virtual ~task_context() = default;

private:
    const void* kind_;
    std::uint32_t uses_ = 0;
};

} // namespace skein


// ======== skein/core/task.hpp, continued
#include <concepts>
#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace skein {

template <class T = void>
class task;

namespace detail {

class cancel_state;

/// The coroutine to run as soon as the running one is suspended; the loop's trampoline reads it.
inline constinit thread_local std::coroutine_handle<> next_to_run{};

/// What every coroutine of skein carries: who waits for it, the cancellation it runs under, and what it
/// belongs to (held by the task that brought it in, see under_context and self_owned).
struct promise_base {
    std::coroutine_handle<> continuation{};
    cancel_state* cancel = nullptr;
    task_context* context = nullptr;

    static void* operator new(std::size_t bytes) { return frame_pool::allocate(bytes); }
    static void operator delete(void* p, std::size_t bytes) noexcept {
        frame_pool::release(p, bytes);
    }
};

/// Leaf awaitables of skein can be awaited only inside skein coroutines.
template <class Promise>
concept promise_with_context = std::derived_from<Promise, promise_base>;

/// Ends a task: its awaiter is next.
struct final_awaiter {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> h) const noexcept {
        next_to_run = h.promise().continuation;
    }
    void await_resume() const noexcept {}
};

template <class T>
struct task_promise : promise_base {
    using stored = std::conditional_t<std::is_reference_v<T>, std::remove_reference_t<T>*, T>;

    task<T> get_return_object() noexcept;
    std::suspend_always initial_suspend() const noexcept { return {}; }
    final_awaiter final_suspend() const noexcept { return {}; }
    void unhandled_exception() noexcept { failure = std::current_exception(); }

    template <class U>
        requires std::convertible_to<U&&, T>
    void return_value(U&& result) {
        if constexpr (std::is_reference_v<T>) {
            value.emplace(std::addressof(result));
        } else {
            value.emplace(std::forward<U>(result));
        }
    }
    T take() {
        if (failure) std::rethrow_exception(std::move(failure));
        if constexpr (std::is_reference_v<T>) {
            return static_cast<T>(**value);
        } else {
            return std::move(*value);
        }
    }

    std::optional<stored> value;
    std::exception_ptr failure;
};

template <>
struct task_promise<void> : promise_base {
    task<void> get_return_object() noexcept;
    std::suspend_always initial_suspend() const noexcept { return {}; }
    final_awaiter final_suspend() const noexcept { return {}; }
    void unhandled_exception() noexcept { failure = std::current_exception(); }
    void return_void() const noexcept {}
    void take() {
        if (failure) std::rethrow_exception(std::move(failure));
    }
    std::exception_ptr failure;
};

template <class T>
class await_under;
template <class T>
class under_context;

/// What awaiting a task does: the task is next, its awaiter is its continuation.
template <class T>
class task_awaiter {
public:
    explicit task_awaiter(std::coroutine_handle<task_promise<T>> frame) noexcept : frame_(frame) {}
    bool await_ready() const noexcept { return false; }
    template <promise_with_context Promise>
    void await_suspend(std::coroutine_handle<Promise> parent) const noexcept {
        auto& promise = frame_.promise();
        promise.continuation = parent;
        promise.cancel = parent.promise().cancel;
        promise.context = parent.promise().context;
        next_to_run = frame_;
    }
    T await_resume() const { return frame_.promise().take(); }

private:
    std::coroutine_handle<task_promise<T>> frame_;
};

} // namespace detail

/// A lazy computation. Move-only; owns its frame. Await it at most once.
template <class T>
class [[nodiscard]] task {
public:
    using promise_type = detail::task_promise<T>;
    using value_type = T;

    task() noexcept = default;
    task(task&& other) noexcept : frame_(std::exchange(other.frame_, {})) {}
    task& operator=(task&& other) noexcept {
        if (this != &other) {
            if (frame_) frame_.destroy();
            frame_ = std::exchange(other.frame_, {});
        }
        return *this;
    }
    ~task() {
        if (frame_) frame_.destroy();
    }

    /// False after being moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(frame_); }

    /// Starts the task and suspends until it ends; gives its value or rethrows its exception. It runs
    /// under the cancellation of the awaiting task.
    detail::task_awaiter<T> operator co_await() noexcept {
        SKEIN_CHECK(frame_ && !frame_.done(), "a task is awaited that was moved from or has ended");
        return detail::task_awaiter<T>(frame_);
    }

private:
    friend promise_type;
    template <class>
    friend class detail::await_under;
    template <class>
    friend class detail::under_context;
    explicit task(std::coroutine_handle<promise_type> frame) noexcept : frame_(frame) {}
    std::coroutine_handle<promise_type> frame_;
};

namespace detail {

template <class T>
task<T> task_promise<T>::get_return_object() noexcept {
    return task<T>(std::coroutine_handle<task_promise>::from_promise(*this));
}
inline task<void> task_promise<void>::get_return_object() noexcept {
    return task<void>(std::coroutine_handle<task_promise>::from_promise(*this));
}

/// Awaits a task under another cancellation than the awaiter's. Name it, then await it.
template <class T>
class await_under {
public:
    await_under(task<T> work, cancel_state* cancel) noexcept
        : work_(std::move(work)), cancel_(cancel) {}
    bool await_ready() const noexcept { return false; }
    template <promise_with_context Promise>
    void await_suspend(std::coroutine_handle<Promise> parent) noexcept {
        auto& promise = work_.frame_.promise();
        promise.continuation = parent;
        promise.cancel = cancel_;
        promise.context = parent.promise().context;
        next_to_run = work_.frame_;
    }
    T await_resume() { return work_.frame_.promise().take(); }

private:
    task<T> work_;
    cancel_state* cancel_;
};

/// Awaits a task that belongs to something else than the awaiter. Name it, then await it.
template <class T>
class under_context {
public:
    under_context(counted_ptr<task_context> context, task<T> work) noexcept
        : context_(std::move(context)), work_(std::move(work)) {}
    bool await_ready() const noexcept { return false; }
    template <promise_with_context Promise>
    void await_suspend(std::coroutine_handle<Promise> parent) noexcept {
        auto& promise = work_.frame_.promise();
        promise.continuation = parent;
        promise.cancel = parent.promise().cancel;
        promise.context = current_context = context_.get();
        before_ = parent.promise().context;
        next_to_run = work_.frame_;
    }
    T await_resume() {
        current_context = before_;
        return work_.frame_.promise().take();
    }

private:
    counted_ptr<task_context> context_;
    task_context* before_ = nullptr;
    task<T> work_;
};

} // namespace detail

/// Runs work, and all that it awaits and spawns, under a context (empty: under none).
template <class T>
[[nodiscard]] task<T> with_context(counted_ptr<task_context> context, task<T> work) {
    detail::under_context<T> inner(std::move(context), std::move(work));
    co_return co_await inner;
}

} // namespace skein


// ======== skein/core/cancel.hpp, continued
#include <memory>
#include <utility>

namespace skein {

/// What a cancelled await throws.
[[nodiscard]] inline error cancelled_error() { return error(errc::cancelled, "cancelled"); }

namespace detail {

/// Told once when its state is cancelled; unlinks itself when destroyed.
class cancel_hook : public list_node<cancel_hook> {
public:
    explicit cancel_hook(void (*cancelled)(cancel_hook&) noexcept) noexcept
        : cancelled_(cancelled) {}

private:
    friend class cancel_state;
    void (*cancelled_)(cancel_hook&) noexcept;
};

/// One node of the cancellation tree. A task points at the state it runs under.
class cancel_state {
public:
    cancel_state() noexcept = default;
    /// A child: cancelled with its parent (may be null), and by itself.
    explicit cancel_state(cancel_state* parent) noexcept { link(parent); }
    cancel_state(const cancel_state&) = delete;
    cancel_state& operator=(const cancel_state&) = delete;

    [[nodiscard]] bool requested() const noexcept { return requested_; }

    /// Cancels everything below. The first call counts.
    void request() noexcept {
        if (std::exchange(requested_, true)) return;
        while (!hooks_.empty()) {
            auto& hook = hooks_.pop_front();
            hook.cancelled_(hook);
        }
    }
    /// hook is told at request(); at once if that has been.
    void add(cancel_hook& hook) noexcept {
        if (requested_) {
            hook.cancelled_(hook);
        } else {
            hooks_.push_back(hook);
        }
    }
    /// Makes this a child of parent (one parent at a time).
    void link(cancel_state* parent) noexcept {
        if (parent != nullptr) parent->add(to_parent_);
    }

private:
    struct parent_hook : cancel_hook {
        explicit parent_hook(cancel_state& child) noexcept
            : cancel_hook(
                  [](cancel_hook& h) noexcept { static_cast<parent_hook&>(h).child_.request(); }),
              child_(child) {}
        cancel_state& child_;
    };

    bool requested_ = false;
    intrusive_list<cancel_hook, cancel_hook> hooks_;
    parent_hook to_parent_{*this};
};

/// `co_await current_cancel{}` gives the state the running task is under (may be null); never suspends.
struct current_cancel {
    cancel_state* state = nullptr;
    bool await_ready() const noexcept { return false; }
    template <promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) noexcept {
        state = h.promise().cancel;
        return false;
    }
    cancel_state* await_resume() const noexcept { return state; }
};

} // namespace detail

/// Shares in a cancel_source. Cheap to copy; an empty token is never cancelled.
class cancel_token {
public:
    cancel_token() noexcept = default;
    [[nodiscard]] bool requested() const noexcept { return state_ && state_->requested(); }

private:
    friend class cancel_source;
    template <class T>
    friend task<T> with_cancel(cancel_token token, task<T> work);
    explicit cancel_token(std::shared_ptr<detail::cancel_state> state) noexcept
        : state_(std::move(state)) {}
    std::shared_ptr<detail::cancel_state> state_;
};

/// Where a cancellation comes from.
class cancel_source {
public:
    cancel_source() : state_(std::make_shared<detail::cancel_state>()) {}
    [[nodiscard]] cancel_token token() const noexcept { return cancel_token(state_); }
    [[nodiscard]] bool requested() const noexcept { return state_->requested(); }
    /// Cancels all work under the token. Their waits end in the loop's next turn, not in this call.
    void request() noexcept { state_->request(); }

private:
    std::shared_ptr<detail::cancel_state> state_;
};

/// Runs work so that it is cancelled by the token as well as by the awaiting task.
template <class T>
[[nodiscard]] task<T> with_cancel(cancel_token token, task<T> work) {
    auto* outer = co_await detail::current_cancel{};
    detail::cancel_state both(outer);
    struct second_parent : detail::cancel_hook {
        explicit second_parent(detail::cancel_state& state) noexcept
            : cancel_hook(
                  [](cancel_hook& h) noexcept { static_cast<second_parent&>(h).child.request(); }),
              child(state) {}
        detail::cancel_state& child;
    } link(both);
    if (token.state_) token.state_->add(link);
    detail::await_under<T> inner(std::move(work), &both);
    co_return co_await inner;
}

/// Runs work out of reach of the awaiting task's cancellation: for clean-up that has to finish.
template <class T>
[[nodiscard]] task<T> shield(task<T> work) {
    detail::await_under<T> inner(std::move(work), nullptr);
    co_return co_await inner;
}

} // namespace skein

// ======== skein/core/loop.hpp
// loop: what one thread runs. A run queue, timers, handles posted from other threads, and a way to
// wait for the outside world.
//
// Two worlds derive from it: net::real_loop (Asio) and sim::loop (virtual time, seeded). Protocol
// code sees only this class and cannot tell which one it is on. A coroutine stays on its loop. One
// turn: run what is ready, run the turn hooks (one flush per connection), wait for I/O or the next
// timer, fire timers, take what other threads posted.


// ======== skein/core/timer_wheel.hpp
// Timers: a hierarchical wheel with a tick of one nanosecond, so it is exact and both set and
// cancel cost O(1), however many calls carry a deadline.
//
// A timer lies at the level of the highest 6-bit digit in which its time differs from the wheel's
// time. It cascades to lower levels as time reaches its slot, at most ten times, and fires from level
// zero, where a slot is one nanosecond. Occupancy bit maps find the next slot without stepping.
// Source: Varghese, Lauck, "Hashed and hierarchical timing wheels", SOSP 1987, scheme 6.


#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>

namespace skein {

/// One timer. Derive from it and pass what to do; it is called on the loop's thread, once per set.
/// Destroying or cancelling a timer that is set takes it back.
class timer_node : public list_node<timer_node> {
public:
    explicit timer_node(void (*expired)(timer_node&)) noexcept : expired_(expired) {}

    [[nodiscard]] bool is_set() const noexcept { return is_linked(); }
    [[nodiscard]] time_point when() const noexcept { return when_; }
    void cancel() noexcept { unlink(); }

private:
    friend class timer_wheel;
    void (*expired_)(timer_node&);
    time_point when_{};
};

/// The timers of one loop. Timers of the same nanosecond fire in a fixed order.
class timer_wheel {
public:
    explicit timer_wheel(time_point start = {}) noexcept : now_(ticks(start)) {}

    /// Sets (or moves) a timer. A time not after the wheel's fires at the next advance.
    void set(timer_node& timer, time_point when) noexcept {
        timer.unlink();
        timer.when_ = when;
        place(timer);
    }

    /// When to look again, or nothing: the time of the earliest timer, or an earlier one when many
    /// lie close together. At such a time they move to lower levels, so that it comes closer.
    [[nodiscard]] std::optional<time_point> next() noexcept {
        if (!due_.empty()) return time_point(duration(static_cast<std::int64_t>(now_)));
        for (std::size_t level = 0; level < levels; ++level) {
            while (occupied_[level] != 0) {
                const auto slot = static_cast<std::size_t>(std::countr_zero(occupied_[level]));
                auto& list = slots_[level][slot];
                if (list.empty()) { // its timers were cancelled
                    occupied_[level] &= ~(std::uint64_t{1} << slot);
                    continue;
                }
                time_point earliest = time_point::max();
                int seen = 0;
                const bool all = list.for_each_while([&](timer_node& t) {
                    earliest = std::min(earliest, t.when_);
                    return ++seen < most_looked_at;
                });
                if (all) return earliest;
                return time_point(duration(static_cast<std::int64_t>(start_of(level, slot))));
            }
        }
        return std::nullopt;
    }

    /// Moves time forward and fires what is due. Timers set by a fired timer for a time that is not
    /// after `to` fire in the same call.
    void advance(time_point to) {
        const std::uint64_t target = std::max(now_, ticks(to));
        for (;;) {
            while (!due_.empty()) {
                auto& timer = due_.pop_front();
                timer.expired_(timer);
            }
            const auto slot = first_slot(target);
            if (!slot) break;
            now_ = slot->start;
            intrusive_list<timer_node, timer_node> taken;
            taken.splice_back(slots_[slot->level][slot->index]);
            while (!taken.empty()) place(taken.pop_front());
        }
        now_ = target;
    }

private:
    static constexpr std::size_t levels = 11;
    static constexpr unsigned bits = 6;
    static constexpr int most_looked_at = 64; ///< in a slot, by next()
    struct position {
        std::size_t level, index;
        std::uint64_t start;
    };

    static std::uint64_t ticks(time_point t) noexcept {
        return static_cast<std::uint64_t>(std::max<std::int64_t>(0, t.time_since_epoch().count()));
    }

    void place(timer_node& timer) noexcept {
        const std::uint64_t when = ticks(timer.when_);
        if (when <= now_) {
            due_.push_back(timer);
            return;
        }
        const auto highest = static_cast<unsigned>(63 - std::countl_zero(when ^ now_));
        const std::size_t level = highest / bits;
        const std::size_t index = (when >> (bits * level)) & 63;
        slots_[level][index].push_back(timer);
        occupied_[level] |= std::uint64_t{1} << index;
    }

    [[nodiscard]] std::uint64_t start_of(std::size_t level, std::size_t index) const noexcept {
        const unsigned shift = bits * static_cast<unsigned>(level);
        const unsigned above = shift + bits;
        const std::uint64_t high = above >= 64 ? 0 : (now_ >> above) << above;
        return high | (std::uint64_t{index} << shift);
    }

    /// The earliest occupied slot that starts at or before target, now empty in the bit map.
    std::optional<position> first_slot(std::uint64_t target) noexcept {
        for (std::size_t level = 0; level < levels; ++level) {
            if (occupied_[level] == 0) continue;
            const auto index = static_cast<std::size_t>(std::countr_zero(occupied_[level]));
            const std::uint64_t start = start_of(level, index);
            if (start > target) return std::nullopt;
            occupied_[level] &= ~(std::uint64_t{1} << index);
            return position{level, index, start};
        }
        return std::nullopt;
    }

    std::uint64_t now_;
    std::array<std::uint64_t, levels> occupied_{};
    std::array<std::array<intrusive_list<timer_node, timer_node>, 64>, levels> slots_;
    intrusive_list<timer_node, timer_node> due_;
};

} // namespace skein


// ======== skein/core/loop.hpp, continued
#include <algorithm>
#include <atomic>
#include <concepts>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace skein {

namespace detail {

struct self_owned;

/// Of a coroutine that owns itself. It belongs to what its maker belonged to.
struct root_promise : promise_base {
    root_promise() noexcept : owned(current_context) { context = current_context; }
    self_owned get_return_object() noexcept;
    std::suspend_always initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    [[noreturn]] void unhandled_exception() const noexcept { std::terminate(); }
    counted_ptr<task_context> owned;
};

} // namespace detail

/// Work done once at the end of a turn in which it was requested. Unlinks itself when destroyed.
class turn_hook : public list_node<turn_hook> {
public:
    explicit turn_hook(void (*run)(turn_hook&)) noexcept : run_(run) {}

private:
    friend class loop;
    void (*run_)(turn_hook&);
};

/// A coroutine that waits, and the context to resume it under. Lives where the wait does.
struct resumption {
    std::coroutine_handle<> handle;
    task_context* context = nullptr;
};

/// One thread's scheduler. All members but post_from_any_thread belong to the thread that runs it.
class loop {
public:
    loop(const loop&) = delete;
    loop& operator=(const loop&) = delete;
    virtual ~loop() {
        for (const item& i : ready_) {
            if (i.run == &run_call) delete static_cast<unique_function<void()>*>(i.what);
        }
    }

    /// The loop that runs on this thread; a bug if there is none.
    [[nodiscard]] static loop& current() {
        SKEIN_CHECK(current_ != nullptr, "no skein loop runs on this thread");
        return *current_;
    }
    [[nodiscard]] static loop* try_current() noexcept { return current_; }

    /// Drives this loop on the calling thread until work ends; gives its value or rethrows. Work is
    /// cancelled by the token. Not re-entrant.
    template <class T>
    T run(task<T> work, cancel_token token = {});

    /// Owns work whose owner was destroyed: run() returns only when all of it has ended. It should have
    /// been cancelled. Its errors are nobody's.
    void adopt(task<void> work);

    /// Queues a suspended coroutine; it is resumed in this turn or the next, under no context.
    void post(std::coroutine_handle<> handle) { ready_.push_back({&run_frame, handle.address()}); }
    /// The same with its context; `to` must stay until then.
    void post(resumption& to) { ready_.push_back({&run_resumption, &to}); }
    /// Queues a new coroutine that owns itself, under the context that its promise holds.
    void post_root(std::coroutine_handle<detail::root_promise> root) {
        ready_.push_back({&run_root_frame, root.address()});
    }
    /// Queues a call. It must not throw: nobody is there to catch it, the program ends.
    template <class F>
        requires(std::invocable<F&> && !std::convertible_to<F, std::coroutine_handle<>>)
    void post(F call) {
        ready_.push_back({&run_call, new unique_function<void()>(std::move(call))});
    }
    /// Queues a call from any thread and wakes the loop. The only thread-safe member. The call must not
    /// throw.
    void post_from_any_thread(unique_function<void()> call) {
        // All under the lock: once the loop has taken the call it may end and be destroyed.
        const std::lock_guard lock(remote_mutex_);
        remote_.push_back(std::move(call));
        has_remote_.store(true, std::memory_order_seq_cst);
        if (blocked_.load(std::memory_order_seq_cst)) notify();
    }

    /// The time of this turn.
    [[nodiscard]] time_point now() const noexcept { return now_; }
    /// The time now: what a length "from now on" counts from, however long this turn has taken already.
    [[nodiscard]] time_point exact_now() noexcept { return std::max(now_, read_clock()); }
    /// The time now, not that of this turn, to a few milliseconds: cheap enough to ask after each piece of
    /// work that may have been long.
    [[nodiscard]] virtual time_point coarse_now() noexcept { return read_clock(); }

    /// Where randomness of this world comes from: the kernel's here, a seeded one under simulation.
    [[nodiscard]] virtual random_source& random() noexcept { return system_random(); }
    /// How long work on another thread is to seem to take; nothing in worlds that have threads.
    [[nodiscard]] virtual std::optional<duration> simulated_work_time() { return std::nullopt; }

    /// Sets a timer of this loop (again).
    void set_timer(timer_node& timer, time_point when) noexcept { timers_.set(timer, when); }

    /// Runs the hook once when the ready work of this turn is done, before the loop waits.
    void at_turn_end(turn_hook& hook) noexcept {
        if (!hook.is_linked()) hooks_.push_back(hook);
    }

    /// Runs a coroutine and what it hands over to until all are suspended. For completion handlers of
    /// a world, called on the loop's thread, never from inside a coroutine.
    static void resume(std::coroutine_handle<> handle) {
        // After this many hand-overs others get their turn.
        constexpr int budget = 4096;
        int left = budget;
        while (handle) {
            if (--left == 0 && current_ != nullptr) {
                current_->post([handle, context = counted_ptr(detail::current_context)] {
                    detail::current_context = context.get();
                    resume(handle);
                });
                return;
            }
            detail::next_to_run = {};
            handle.resume();
            handle = std::exchange(detail::next_to_run, {});
        }
    }

protected:
    explicit loop(time_point start = {}) : now_(start), timers_(start) {}

    /// The world's clock now.
    virtual time_point read_clock() noexcept = 0;
    /// Handles what is ready outside. With may_block it waits for something to be ready, for notify(),
    /// or until the time given (nothing: no timer is set); without, it returns at once. Called with
    /// no lock held; notify() is called under the lock of the posted calls and must not post.
    virtual void poll(std::optional<time_point> until, bool may_block) = 0;
    /// Thread-safe: makes a poll that waits return, or the next one not wait.
    virtual void notify() noexcept = 0;

    /// One turn. For worlds that drive themselves.
    void turn(bool may_block) {
        run_ready();
        run_hooks();
        const bool idle = ready_.empty() && may_block && !is_over();
        if (idle) blocked_.store(true, std::memory_order_seq_cst);
        const bool remote = has_remote_.load(std::memory_order_seq_cst);
        const bool wait = idle && !remote;
        poll(wait ? timers_.next() : std::nullopt, wait);
        if (idle) blocked_.store(false, std::memory_order_relaxed);
        now_ = std::max(now_, read_clock());
        timers_.advance(now_);
        if (has_remote_.load(std::memory_order_acquire)) take_remote();
    }

private:
    struct item {
        void (*run)(void*);
        void* what;
    };

    [[nodiscard]] bool is_over() const noexcept { return finished_ && adopted_ == 0; }
    static void run_frame(void* p) {
        detail::current_context = nullptr;
        resume(std::coroutine_handle<>::from_address(p));
    }
    static void run_resumption(void* p) {
        const resumption to = *static_cast<resumption*>(p); // it ends with the wait
        detail::current_context = to.context;
        resume(to.handle);
    }
    static void run_root_frame(void* p) {
        const auto root = std::coroutine_handle<detail::root_promise>::from_address(p);
        detail::current_context = root.promise().context;
        resume(root);
    }
    static void run_call(void* p) noexcept {
        const std::unique_ptr<unique_function<void()>> owned(
            static_cast<unique_function<void()>*>(p));
        detail::current_context = nullptr;
        (*owned)();
    }
    void run_ready() {
        // Work that posts itself for ever must not keep the world out.
        for (int round = 0; round < 16 && !ready_.empty(); ++round) {
            running_.swap(ready_);
            for (const item& i : running_) i.run(i.what);
            running_.clear();
        }
        detail::current_context = nullptr; // of what comes from outside
    }
    void run_hooks() {
        intrusive_list<turn_hook, turn_hook> due;
        due.splice_back(hooks_);
        while (!due.empty()) {
            auto& hook = due.pop_front();
            hook.run_(hook);
        }
    }
    void take_remote() noexcept {
        std::vector<unique_function<void()>> taken;
        {
            const std::lock_guard lock(remote_mutex_);
            taken.swap(remote_);
            has_remote_.store(false, std::memory_order_relaxed);
        }
        for (auto& call : taken) call();
    }

    static inline constinit thread_local loop* current_ = nullptr;

    bool finished_ = false;   ///< the task of run() has ended
    std::size_t adopted_ = 0; ///< works of adopt() that have not
    time_point now_;
    timer_wheel timers_;
    std::vector<item> ready_, running_;
    intrusive_list<turn_hook, turn_hook> hooks_;

    std::mutex remote_mutex_;
    std::vector<unique_function<void()>> remote_;
    std::atomic<bool> has_remote_{false};
    std::atomic<bool> blocked_{false};
};

namespace detail {

/// A coroutine that owns itself: starts when told, destroys itself at its end. Only scope and loop make
/// them; nothing else may run without an owner.
struct self_owned {
    using promise_type = root_promise;
    std::coroutine_handle<root_promise> frame;
};

inline self_owned root_promise::get_return_object() noexcept {
    return {std::coroutine_handle<root_promise>::from_promise(*this)};
}

template <class T>
self_owned run_root(task<T> work, task_promise<T>* out, bool* done) {
    try {
        if constexpr (std::is_void_v<T>) {
            co_await work;
        } else {
            out->return_value(co_await work);
        }
    } catch (...) {
        out->unhandled_exception();
    }
    work = {};
    *done = true;
}

} // namespace detail

template <class T>
T loop::run(task<T> work, cancel_token token) {
    SKEIN_CHECK(current_ == nullptr, "loop::run inside a running loop");
    struct current_guard {
        explicit current_guard(loop* l) { current_ = l; }
        ~current_guard() { current_ = nullptr; }
    } guard(this);

    now_ = std::max(now_, read_clock());
    detail::task_promise<T> outcome;
    finished_ = false;
    auto guarded = with_cancel(std::move(token), std::move(work));
    auto root = detail::run_root<T>(std::move(guarded), &outcome, &finished_);
    post_root(root.frame);
    while (!is_over()) turn(true);
    return outcome.take();
}

} // namespace skein


// ======== skein/core/detail/loop.ipp
// Tasks that a loop ends itself.

#include <utility>

namespace skein {

namespace detail {

SKEIN_INLINE self_owned run_adopted(task<void> work, std::size_t* running) {
    try {
        co_await work;
    } catch (...) { // nobody is left to be told
    }
    work = {};
    --*running;
}

} // namespace detail

SKEIN_INLINE void loop::adopt(task<void> work) {
    ++adopted_;
    auto adopted = detail::run_adopted(std::move(work), &adopted_);
    post_root(adopted.frame);
}

} // namespace skein


// ======== skein/core/wait.hpp, continued
#include <coroutine>
#include <cstdint>

namespace skein {

/// One suspended coroutine. Lives in the awaiter, so in the coroutine's frame.
class waiter : public list_node<waiter>, private detail::cancel_hook {
public:
    waiter() noexcept
        : cancel_hook([](cancel_hook& h) noexcept { static_cast<waiter&>(h).cancel_requested(); }) {
    }
    virtual ~waiter() = default;

    /// To be called in await_suspend. False: the task is cancelled already, do not suspend.
    template <detail::promise_with_context Promise>
    [[nodiscard]] bool arm(std::coroutine_handle<Promise> h, bool cancellable = true) {
        next_ = {h, h.promise().context};
        loop_ = &loop::current();
        detail::cancel_state* cancel = cancellable ? h.promise().cancel : nullptr;
        if (cancel != nullptr && cancel->requested()) {
            state_ = state::cancelled;
            return false;
        }
        state_ = state::waiting;
        if (cancel != nullptr) cancel->add(*this);
        return true;
    }
    [[nodiscard]] bool is_waiting() const noexcept { return state_ == state::waiting; }

    /// Ends the wait well; the coroutine is resumed by the loop. Ignored if it has ended.
    void wake() noexcept { end(state::woken); }

    /// To be called in await_resume.
    void throw_if_cancelled() const {
        if (state_ == state::cancelled) throw cancelled_error();
    }

protected:
    /// Called when the task is cancelled while it waits. A leaf whose operation ends later (an Asio
    /// operation) overrides it, starts the end, and calls end_cancelled() or wake() when it is there.
    virtual void cancel_requested() noexcept { end_cancelled(); }
    void end_cancelled() noexcept { end(state::cancelled); }

private:
    enum class state : std::uint8_t { idle, waiting, woken, cancelled };

    void end(state how) noexcept {
        if (state_ != state::waiting) return;
        state_ = how;
        list_node<waiter>::unlink();
        list_node<cancel_hook>::unlink();
        loop_->post(next_);
    }

    resumption next_;
    loop* loop_ = nullptr;
    state state_ = state::idle;

public:
    using list_node<waiter>::is_linked;
    using list_node<waiter>::unlink;
};

/// Coroutines that wait for the same thing, first come first woken. One loop.
class wait_queue {
public:
    class awaiter : public waiter {
    public:
        awaiter(wait_queue& queue, bool cancellable) noexcept
            : queue_(queue), cancellable_(cancellable) {}
        bool await_ready() const noexcept { return false; }
        template <detail::promise_with_context Promise>
        bool await_suspend(std::coroutine_handle<Promise> h) {
            if (!arm(h, cancellable_)) return false;
            queue_.waiters_.push_back(*this);
            return true;
        }
        void await_resume() const { throw_if_cancelled(); }

    private:
        wait_queue& queue_;
        bool cancellable_;
    };

    /// Suspends until woken; throws cancelled.
    [[nodiscard]] awaiter wait() noexcept { return awaiter(*this, true); }
    /// Suspends until woken, whatever happens to the task: for joins, which have to end.
    [[nodiscard]] awaiter wait_uncancellable() noexcept { return awaiter(*this, false); }

    [[nodiscard]] bool empty() const noexcept {
        return const_cast<wait_queue*>(this)->waiters_.empty();
    }
    /// Wakes the first; false if nobody waits.
    bool wake_one() noexcept {
        if (waiters_.empty()) return false;
        waiters_.front().wake();
        return true;
    }
    void wake_all() noexcept {
        while (wake_one()) {}
    }
    /// The line itself, for primitives whose waiters carry more (semaphore, channel).
    [[nodiscard]] intrusive_list<waiter, waiter>& waiters() noexcept { return waiters_; }

private:
    intrusive_list<waiter, waiter> waiters_;
};

} // namespace skein


// ======== skein/core/event.hpp, continued
namespace skein {

/// A flag that tasks of one loop wait for; set until reset(). Neither copyable nor movable.
class event {
public:
    /// Wakes all who wait, and lets later waits pass until reset().
    void set() noexcept {
        set_ = true;
        waiting_.wake_all();
    }
    void reset() noexcept { set_ = false; }
    [[nodiscard]] bool is_set() const noexcept { return set_; }

    class awaiter : public wait_queue::awaiter {
    public:
        explicit awaiter(event& e) noexcept : wait_queue::awaiter(e.waiting_, true), event_(e) {}
        bool await_ready() const noexcept { return event_.set_; }

    private:
        event& event_;
    };
    /// Suspends until set; resumed by the loop. Throws cancelled; the event is not changed by that.
    [[nodiscard]] awaiter wait() noexcept { return awaiter(*this); }

private:
    bool set_ = false;
    wait_queue waiting_;
};

} // namespace skein

// ======== skein/core/scope.hpp
// scope: the owner of concurrent tasks. Children end before the parent goes on.
//
// The first child that fails cancels its siblings, and join() rethrows its error. When the task that
// joins is cancelled, the children are cancelled and still waited for. A scope can be used again after
// a join, unless it was cancelled (by itself, a failed child or the joining task): that stays. Destroying
// a scope with running children is a bug and is checked: join it first.
//
//     scope s;
//     s.spawn(serve(a));
//     s.spawn(serve(b));
//     co_await s.join();
//
// with_scope(f, args...) does the same around a body that may throw.


#include <cstddef>
#include <exception>
#include <utility>

namespace skein {

/// Owns tasks of one loop. Neither copyable nor movable.
class scope {
public:
    scope() noexcept = default;
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() {
        SKEIN_CHECK(running_ == 0,
                    "a scope is destroyed while {} of its tasks run; co_await join() first",
                    running_);
    }

    /// Starts a task; it runs from the loop's queue, not inside this call, under the context of the caller.
    /// Its error is join()'s.
    void spawn(task<void> work) {
        ++running_;
        auto child = run_child(this, std::move(work));
        child.frame.promise().cancel = &cancel_;
        loop::current().post_root(child.frame);
    }

    /// Suspends until all children have ended; resumed by the loop. Throws the first error of a child,
    /// or cancelled if the joining task was cancelled (then all children were).
    [[nodiscard]] task<void> join();

    /// Cancels all children, running and future ones. They still have to be joined.
    void cancel() noexcept { cancel_.request(); }
    [[nodiscard]] bool cancelled() const noexcept { return cancel_.requested(); }
    /// How many children run.
    [[nodiscard]] std::size_t size() const noexcept { return running_; }

private:
    struct parent_link : detail::cancel_hook {
        explicit parent_link(scope& s) noexcept
            : cancel_hook(
                  [](cancel_hook& h) noexcept { static_cast<parent_link&>(h).owner.cancel(); }),
              owner(s) {}
        scope& owner;
    };

    static detail::self_owned run_child(scope* owner, task<void> work);
    void child_ended(std::exception_ptr failure) noexcept;
    template <class Body, class... Args>
    friend task<void> with_scope(Body body, Args... args);
    static bool is_cancelled(const std::exception_ptr& failure) noexcept;

    std::size_t running_ = 0;
    std::exception_ptr failure_;
    detail::cancel_state cancel_;
    detail::cancel_state* body_ = nullptr; // of with_scope: ended by a failed child
    wait_queue idle_;
};

/// Runs body(scope&, args...), then joins the scope. If the body throws, the children are cancelled and
/// waited for, and the body's error is rethrown. If a child fails, the body is cancelled too, and the
/// child's error is rethrown.
template <class Body, class... Args>
[[nodiscard]] task<void> with_scope(Body body, Args... args) {
    auto* outer = co_await detail::current_cancel{};
    detail::cancel_state body_cancel(outer);
    scope children;
    children.body_ = &body_cancel;
    std::exception_ptr failure;
    try {
        auto work = body(children, std::move(args)...);
        detail::await_under<void> inner(std::move(work), &body_cancel);
        co_await inner;
    } catch (...) {
        failure = std::current_exception();
        children.cancel();
    }
    children.body_ = nullptr;
    try {
        auto joined = children.join();
        co_await joined;
    } catch (...) {
        if (!failure || scope::is_cancelled(failure)) failure = std::current_exception();
    }
    if (failure) std::rethrow_exception(std::move(failure));
}

} // namespace skein


// ======== skein/core/detail/scope.ipp
// The coroutines of a scope: g++ would put them into every object file that sees them.

#include <exception>
#include <utility>

namespace skein {

SKEIN_INLINE task<void> scope::join() {
    auto* outer = co_await detail::current_cancel{};
    parent_link link(*this);
    if (outer != nullptr) outer->add(link);
    while (running_ != 0) {
        auto ended = idle_.wait_uncancellable();
        co_await ended;
    }
    link.unlink();
    if (auto failure = std::exchange(failure_, nullptr)) std::rethrow_exception(std::move(failure));
    if (outer != nullptr && outer->requested()) throw cancelled_error();
}

SKEIN_INLINE detail::self_owned scope::run_child(scope* owner, task<void> work) {
    std::exception_ptr failure;
    try {
        co_await work;
    } catch (...) {
        failure = std::current_exception();
    }
    work = {};
    owner->child_ended(std::move(failure));
}

SKEIN_INLINE void scope::child_ended(std::exception_ptr failure) noexcept {
    if (failure && !failure_ && !(cancel_.requested() && is_cancelled(failure))) {
        failure_ = std::move(failure);
        cancel_.request();
        if (body_ != nullptr) body_->request();
    }
    if (--running_ == 0) idle_.wake_all();
}

SKEIN_INLINE bool scope::is_cancelled(const std::exception_ptr& failure) noexcept {
    try {
        std::rethrow_exception(failure);
    } catch (const error& e) {
        return e.code() == errc::cancelled;
    } catch (...) {
        return false;
    }
}

} // namespace skein

// ======== skein/net/limits.hpp
// What a peer may ask of us: every size and every wait on a connection has a bound here.
//
// Memory per connection is at most about max_frame + max_send_queue + max_receive_queue.
// Nothing is allocated for a peer before it has proven that it knows the token.


#include <cstddef>
#include <cstdint>

namespace skein::net {

/// Bounds of one connection; trivially destructible, so it may stand in an awaited expression.
struct limits {
    std::size_t max_frame = limit::frame_bytes;         ///< body bytes of one frame
    std::size_t max_send_queue = limit::queue_bytes;    ///< send_ready() waits above this
    std::size_t max_receive_queue = limit::queue_bytes; ///< reading pauses above this
    std::size_t max_identity = std::size_t{256} << 10;  ///< encoded identity of the peer
    duration handshake_deadline = time_constants::lan().handshake_timeout;
    duration close_deadline = time_constants::lan().close_timeout; ///< flush at close, then cut
};

/// When a silent peer is asked, suspected and given up.
enum class keep_alive_mode : std::uint8_t {
    automatic, ///< on for TCP and the simulated network, off for Unix sockets (the kernel tells)
    on,
    off,
};
/// How long a peer may be silent before it is asked, suspected and given up.
struct keep_alive {
    keep_alive_mode mode = keep_alive_mode::automatic;
    duration ping_after = time_constants::lan().agent_heartbeat; ///< of silence
    duration suspect_after = time_constants::lan().suspect_after;
    duration dead_after = time_constants::lan().dead_after;
    /// While we read nothing (paused, or the receive queue is full) a peer is judged by what it takes: given
    /// up when bytes wait for it and it has taken none for so long.
    duration stalled_after = time_constants::lan().stalled_after;
};

} // namespace skein::net


// ======== skein/cluster/group.hpp, continued
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::net {
class acceptor;
class admission;
class connection;
class network;
class stream;
struct frame;
} // namespace skein::net

namespace skein::cluster {

/// What a rank says of itself when it joins.
struct member_info {
    std::int32_t rank = 0;
    std::int32_t world_size = 1;
    std::int32_t local_rank = 0;
    std::int32_t local_size = 1;
    std::string host;
    std::int64_t pid = 0;
    std::string job;            ///< group_options::job
    std::int32_t attempt = 0;   ///< group_options::generation
    std::uint64_t settings = 0; ///< hash of group_options::settings
};

/// How a group ended: no failure = every rank left in order.
struct group_outcome {
    std::optional<error> failure;
    int culprit = -1;      ///< the rank that was lost or failed; -1 if nobody in particular
    bool reported = false; ///< the culprit said so itself; otherwise it fell silent or died
};

/// What a group's server knows before the first rank joins.
struct group_options {
    int world_size = 1;
    int generation = 0;
    std::string job; ///< a rank of another job is refused, and so is one of another generation
    /// What all ranks must have alike. The server's own count; if it has none, those of the rank that
    /// joins first. A rank of this job that has others ends the group.
    std::vector<setting> settings;
    net::token secret;
    duration join_deadline = time_constants::lan().rendezvous_timeout;
    std::size_t max_blob = std::size_t{16} << 20; ///< bytes of one rank's blob in an exchange
    net::keep_alive alive{net::keep_alive_mode::on, time_constants::lan().group_heartbeat,
                          time_constants::lan().suspect_after, time_constants::lan().dead_after};
};

/// The meeting point. Lives on the loop that made it.
class group_server {
public:
    /// Listens at once (port 0: any). `via` must outlive it.
    ///   errors  permission_denied: other hosts can reach the address, and there is no token
    group_server(net::network& via, net::address at, group_options options);
    ~group_server();

    [[nodiscard]] net::address local() const;

    /// Serves the group until it ends; all connections are closed by then. Await it once.
    [[nodiscard]] task<group_outcome> run();

    /// Ends the group as failed, for a reason from outside (a child process died).
    void abort(error why, int culprit = -1);
    /// The ranks that have not joined yet, for messages.
    [[nodiscard]] std::vector<int> missing() const;
    /// True when the rank has joined and left in order, or has said that it fails.
    [[nodiscard]] bool has_left(int rank) const;

private:
    struct member;
    task<void> accept_all();
    task<void> serve(std::unique_ptr<net::stream> from, net::admission* place);
    task<void> serve_member(std::shared_ptr<net::connection> link, member* self);
    task<void> watch_deadline();
    [[nodiscard]] result<member*> admit(std::shared_ptr<net::connection> link,
                                        const net::frame& first);
    [[nodiscard]] std::optional<error> objection(const member_info& to,
                                                 const std::vector<setting>& settings);
    void handle(member& from, const net::frame& f);
    void start_if_complete();
    void end(group_outcome how);
    void tell_everyone();

    group_options options_;
    std::unique_ptr<net::acceptor> door_;
    std::vector<std::unique_ptr<member>> members_; ///< by rank; null until joined
    int settings_of_ = 0;                          ///< whose options_.settings are
    std::map<std::string, std::vector<std::optional<byte_buffer>>> exchanges_;
    std::optional<group_outcome> outcome_;
    bool running_ = false;
    event ended_;
    scope children_;
};

/// One rank's end of its group.
class group_client {
public:
    /// Told once, when another rank is lost or fails, or when the server is.
    using lost_callback = unique_function<void(int rank, const error& why)>;

    /// Connects (again and again until the deadline: the server may not be up yet), joins, and waits
    /// until all ranks are there.
    ///   errors  timeout, permission_denied, mismatch (another job, attempt, world size or setting),
    ///           already_exists (rank taken), cancelled (then the others are told)
    static task<std::unique_ptr<group_client>> join(net::network& via, net::address at,
                                                    member_info self, group_options options,
                                                    lost_callback lost);
    ~group_client();

    /// Every rank's blob in rank order; see rendezvous::exchange.
    [[nodiscard]] task<std::vector<byte_buffer>> exchange(std::string key, byte_buffer mine);
    /// This rank is done: leaves in order and waits until the server has seen it.
    [[nodiscard]] task<void> leave();
    /// This rank fails; the server and all others are told why.
    [[nodiscard]] task<void> fail(error why);

    [[nodiscard]] const std::vector<member_info>& members() const noexcept { return members_; }
    [[nodiscard]] int generation() const noexcept { return generation_; }
    [[nodiscard]] const member_info& self() const noexcept { return self_; }

private:
    group_client() = default;
    task<void> read_all();
    void handle(const net::frame& f);
    void lose(int rank, error why);
    task<void> finish();

    member_info self_;
    int generation_ = 0;
    std::shared_ptr<net::connection> link_;
    std::vector<member_info> members_;
    std::map<std::string, std::vector<byte_buffer>> gathered_;
    std::optional<error> lost_;
    bool leaving_ = false;
    bool joined_ = false;
    lost_callback on_lost_;
    wait_queue changed_;
    scope reader_;
};

} // namespace skein::cluster


// ======== skein/cluster/detail/group.ipp
// The server of a group, and what both ends have in common.


// ======== skein/cluster/detail/group_protocol.hpp
// Frames of the group protocol; comes after cluster/group.hpp. Bodies are wire-encoded.


// ======== skein/net/connection.hpp
// Frames between two authenticated peers over any stream, in order, each at most once.
//
// Writes are coalesced: everything sent in one turn of the loop leaves in one system call. Large
// bodies are scattered and gathered, not copied together. A silent peer is pinged and given up.
//
//     auto t = net::connection::connect(network, to, options);
//     auto c = co_await std::move(t);
//     c->send(7, 0, id, head, body);              // queued, leaves at the end of the turn
//     std::optional<net::frame> f = co_await c->receive();
//     co_await c->close();                         // flushes, then waits for the peer's goodbye


// ======== skein/net/detail/out_queue.hpp
// The outgoing bytes of a connection: small pieces are copied one behind the other into a buffer,
// large ones stay where they are and are gathered by the system call.


#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace skein::net::detail {

/// Bytes that grow without being zeroed first.
class raw_buffer {
public:
    raw_buffer() = default;
    raw_buffer(raw_buffer&& other) noexcept
        : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)),
          capacity_(std::exchange(other.capacity_, 0)) {}
    raw_buffer& operator=(raw_buffer&& other) noexcept {
        data_ = std::move(other.data_);
        size_ = std::exchange(other.size_, 0);
        capacity_ = std::exchange(other.capacity_, 0);
        return *this;
    }

    /// Room for n more bytes at the end; the caller fills it.
    std::byte* grab(std::size_t n) {
        if (capacity_ - size_ < n) grow(n);
        std::byte* const at = data_.get() + size_;
        size_ += n;
        return at;
    }
    void append(byte_span bytes) {
        if (!bytes.empty()) std::memcpy(grab(bytes.size()), bytes.data(), bytes.size());
    }
    [[nodiscard]] byte_span view() const noexcept { return {data_.get(), size_}; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
    void clear() noexcept { size_ = 0; }

private:
    void grow(std::size_t n);
    std::unique_ptr<std::byte[]> data_;
    std::size_t size_ = 0, capacity_ = 0;
};

/// A queue of bytes in pieces. The last piece is open: small writes go there.
class out_queue {
public:
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] bool empty() const noexcept { return bytes_ == 0; }
    /// Memory it holds, without what is borrowed.
    [[nodiscard]] std::size_t capacity() const noexcept;

    /// Room in the open piece.
    std::byte* grab(std::size_t n) {
        bytes_ += n;
        return open_.grab(n);
    }
    void copy(byte_span bytes) {
        bytes_ += bytes.size();
        open_.append(bytes);
    }
    /// A large piece of its own.
    void move(byte_buffer bytes);
    /// A piece that others hold, too.
    void share(std::shared_ptr<const byte_buffer> bytes);
    /// A piece that the caller keeps alive until it is written.
    void borrow(byte_span bytes);

    /// Copies what is left of a borrowed last piece, so that the lender may go.
    void own_last();

    /// Views of all pieces, in order.
    void views(std::vector<byte_span>& into) const;
    /// True when all bytes lie in the open piece; then open() is all there is.
    [[nodiscard]] bool simple() const noexcept { return pieces_.empty(); }
    [[nodiscard]] byte_span open() const noexcept { return open_.view().subspan(skip_); }

    /// Forgets the first n bytes, which were written.
    void consume(std::size_t n) noexcept;

    void clear() noexcept;

private:
    struct piece {
        byte_buffer owned;
        raw_buffer small;
        std::shared_ptr<const byte_buffer> shared;
        byte_span view;
    };
    static constexpr std::size_t keep_bytes = std::size_t{1} << 20;

    void seal();

    std::deque<piece> pieces_;
    raw_buffer open_;
    std::size_t skip_ = 0; // written bytes at the front of open_
    std::size_t bytes_ = 0;
};

} // namespace skein::net::detail


// ======== skein/net/detail/out_queue.ipp
// The pieces of an outgoing queue.

#include <algorithm>

namespace skein::net::detail {

SKEIN_INLINE void raw_buffer::grow(std::size_t n) {
    const std::size_t wanted = std::max({size_ + n, capacity_ * 2, std::size_t{4096}});
    auto larger = std::make_unique_for_overwrite<std::byte[]>(wanted);
    if (size_ > 0) std::memcpy(larger.get(), data_.get(), size_);
    data_ = std::move(larger);
    capacity_ = wanted;
}

SKEIN_INLINE std::size_t out_queue::capacity() const noexcept {
    std::size_t sum = open_.capacity();
    for (const auto& p : pieces_) sum += p.owned.capacity() + p.small.capacity();
    return sum;
}

SKEIN_INLINE void out_queue::move(byte_buffer bytes) {
    if (bytes.empty()) return;
    seal();
    bytes_ += bytes.size();
    pieces_.emplace_back();
    pieces_.back().owned = std::move(bytes);
    pieces_.back().view = pieces_.back().owned;
}

SKEIN_INLINE void out_queue::share(std::shared_ptr<const byte_buffer> bytes) {
    if (bytes->empty()) return;
    seal();
    bytes_ += bytes->size();
    pieces_.emplace_back();
    pieces_.back().view = *bytes;
    pieces_.back().shared = std::move(bytes);
}

SKEIN_INLINE void out_queue::borrow(byte_span bytes) {
    if (bytes.empty()) return;
    seal();
    bytes_ += bytes.size();
    pieces_.emplace_back();
    pieces_.back().view = bytes;
}

SKEIN_INLINE void out_queue::own_last() {
    if (pieces_.empty()) return;
    auto& last = pieces_.back();
    last.owned = to_buffer(last.view);
    last.view = last.owned;
}

SKEIN_INLINE void out_queue::views(std::vector<byte_span>& into) const {
    into.clear();
    for (const auto& p : pieces_) into.push_back(p.view);
    if (open_.size() > skip_) into.push_back(open_.view().subspan(skip_));
}

SKEIN_INLINE void out_queue::consume(std::size_t n) noexcept {
    bytes_ -= n;
    while (n > 0 && !pieces_.empty()) {
        auto& first = pieces_.front();
        const std::size_t part = std::min(n, first.view.size());
        first.view = first.view.subspan(part);
        n -= part;
        if (first.view.empty()) pieces_.pop_front();
    }
    skip_ += n;
    if (skip_ == open_.size()) {
        skip_ = 0;
        if (open_.capacity() > keep_bytes) open_ = raw_buffer();
        open_.clear();
    }
}

SKEIN_INLINE void out_queue::clear() noexcept {
    pieces_.clear();
    open_ = raw_buffer();
    skip_ = bytes_ = 0;
}

SKEIN_INLINE void out_queue::seal() {
    if (open_.size() == skip_) return;
    pieces_.emplace_back();
    auto& p = pieces_.back();
    p.small = std::exchange(open_, raw_buffer());
    p.view = p.small.view().subspan(skip_);
    skip_ = 0;
}

} // namespace skein::net::detail

// ======== skein/net/frame.hpp
// Frames: what a connection carries. A header of 24 bytes, then the body.
//
//     u32 length   u16 kind   u16 flags   u64 id   u32 crc of body   u32 crc of the 20 bytes before
//
// The length is checked against its limit, and the header against its CRC, before one byte is
// allocated. All numbers are little-endian.


// ======== skein/core/crc32c.hpp
// CRC-32C (Castagnoli), the checksum of frames and of stored chunks.
//
// Uses the SSE4.2 instruction when the CPU has it (asked once, at run time), else eight tables.
// Both give the same value; crc32c("123456789") is 0xE3069283. Source: RFC 3720 appendix B.4.
//
//     std::uint32_t sum = crc32c(head);
//     sum = crc32c(body, sum);            // the sum of head followed by body


#include <cstddef>
#include <cstdint>

namespace skein {

namespace detail {
/// The portable form; the state is not inverted here.
std::uint32_t crc32c_table(std::uint32_t crc, const std::byte* p, std::size_t n) noexcept;
} // namespace detail

/// True when crc32c() uses the CPU's instruction.
[[nodiscard]] bool crc32c_is_hardware() noexcept;

/// The CRC-32C of `bytes` continued from `seed`, the sum of what came before (0 at the start).
[[nodiscard]] std::uint32_t crc32c(byte_span bytes, std::uint32_t seed = 0) noexcept;

} // namespace skein


// ======== skein/core/detail/crc32c.ipp
// The bodies of core/crc32c.hpp. Its tables are computed by the compiler, a quarter of a second.


#include <array>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace skein {

namespace detail {

/// tables[k][b]: the effect of byte b followed by k zero bytes.
consteval std::array<std::array<std::uint32_t, 256>, 8> make_crc32c_tables() {
    std::array<std::array<std::uint32_t, 256>, 8> tables{};
    for (std::uint32_t b = 0; b < 256; ++b) {
        std::uint32_t r = b;
        for (int bit = 0; bit < 8; ++bit) r = (r & 1) != 0 ? (r >> 1) ^ 0x82F63B78u : r >> 1;
        tables[0][b] = r;
    }
    for (std::size_t k = 1; k < 8; ++k)
        for (std::uint32_t b = 0; b < 256; ++b)
            tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 255];
    return tables;
}
inline constexpr auto crc32c_tables = make_crc32c_tables();

SKEIN_INLINE std::uint32_t crc32c_table(std::uint32_t crc, const std::byte* p,
                                        std::size_t n) noexcept {
    const auto& t = crc32c_tables;
    for (; n >= 8; n -= 8, p += 8) {
        const std::uint64_t v = load_le<std::uint64_t>(p) ^ crc;
        crc = t[7][v & 255] ^ t[6][(v >> 8) & 255] ^ t[5][(v >> 16) & 255] ^ t[4][(v >> 24) & 255] ^
              t[3][(v >> 32) & 255] ^ t[2][(v >> 40) & 255] ^ t[1][(v >> 48) & 255] ^ t[0][v >> 56];
    }
    for (; n > 0; --n, ++p)
        crc = (crc >> 8) ^ t[0][(crc ^ std::to_integer<std::uint32_t>(*p)) & 255];
    return crc;
}

#if defined(__x86_64__)
/// The linear map "advance a raw CRC state over `zeros` zero bytes", as four tables of bytes.
struct crc32c_shift {
    std::array<std::array<std::uint32_t, 256>, 4> tables{};

    explicit crc32c_shift(std::size_t zeros) noexcept {
        std::array<std::uint32_t, 32> bit{};
        for (std::uint32_t i = 0; i < 32; ++i) {
            std::uint32_t crc = 1u << i;
            for (std::size_t k = 0; k < zeros; ++k) crc = (crc >> 8) ^ crc32c_tables[0][crc & 255];
            bit[i] = crc;
        }
        for (std::size_t k = 0; k < 4; ++k)
            for (std::uint32_t b = 0; b < 256; ++b)
                for (std::uint32_t i = 0; i < 8; ++i)
                    if ((b >> i & 1) != 0) tables[k][b] ^= bit[8 * k + i];
    }
    std::uint32_t operator()(std::uint32_t crc) const noexcept {
        return tables[0][crc & 255] ^ tables[1][crc >> 8 & 255] ^ tables[2][crc >> 16 & 255] ^
               tables[3][crc >> 24];
    }
};

/// The instruction has latency 3 and throughput 1: three streams side by side, joined by shifts.
__attribute__((target("sse4.2,crc32"))) SKEIN_INLINE std::uint32_t crc32c_sse42(
    std::uint32_t crc, const std::byte* p, std::size_t n) noexcept {
    constexpr std::size_t lane = 1024;
    static const crc32c_shift shift(lane);
    std::uint64_t c = crc;
    for (; n >= 3 * lane; n -= 3 * lane, p += 3 * lane) {
        std::uint64_t c1 = 0, c2 = 0;
        for (std::size_t i = 0; i < lane; i += 8) {
            c = _mm_crc32_u64(c, load_le<std::uint64_t>(p + i));
            c1 = _mm_crc32_u64(c1, load_le<std::uint64_t>(p + lane + i));
            c2 = _mm_crc32_u64(c2, load_le<std::uint64_t>(p + 2 * lane + i));
        }
        c = shift(static_cast<std::uint32_t>(c)) ^ c1;
        c = shift(static_cast<std::uint32_t>(c)) ^ c2;
    }
    for (; n >= 8; n -= 8, p += 8) c = _mm_crc32_u64(c, load_le<std::uint64_t>(p));
    auto r = static_cast<std::uint32_t>(c);
    for (; n > 0; --n, ++p) r = _mm_crc32_u8(r, std::to_integer<unsigned char>(*p));
    return r;
}
#endif

} // namespace detail

SKEIN_INLINE bool crc32c_is_hardware() noexcept {
#if defined(__x86_64__)
    static const bool has = __builtin_cpu_supports("sse4.2") != 0;
    return has;
#else
    return false;
#endif
}

SKEIN_INLINE std::uint32_t crc32c(byte_span bytes, std::uint32_t seed) noexcept {
    const std::uint32_t start = ~seed;
#if defined(__x86_64__)
    if (crc32c_is_hardware()) return ~detail::crc32c_sse42(start, bytes.data(), bytes.size());
#endif
    return ~detail::crc32c_table(start, bytes.data(), bytes.size());
}

} // namespace skein


// ======== skein/net/frame.hpp, continued
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace skein::net {

/// A frame with its own body. Kinds from first_reserved_kind on belong to the connection itself.
struct frame {
    std::uint16_t kind = 0;
    std::uint16_t flags = 0; ///< the high bit belongs to the connection, 15 are the user's
    std::uint64_t id = 0;
    byte_buffer body;
};

/// Kinds from here on belong to the connection itself.
inline constexpr std::uint16_t first_reserved_kind = 0xff00;
inline constexpr std::uint16_t body_crc_flag = 0x8000; ///< the body's CRC is in the header

/// A received frame as a view: valid only during the call that hands it out.
struct frame_view {
    std::uint16_t kind = 0;
    std::uint16_t flags = 0;
    std::uint64_t id = 0;
    byte_span body;
    byte_buffer* owned = nullptr; ///< set when the body has a buffer of its own (large frames)

    /// The body as an owned buffer: moved when it has its own buffer, else copied. Call once.
    [[nodiscard]] byte_buffer take_body() const {
        return owned != nullptr ? std::move(*owned) : to_buffer(body);
    }
};

/// The fixed part in front of each body.
struct frame_header {
    static constexpr std::size_t bytes = 24;

    std::uint32_t length = 0;
    std::uint16_t kind = 0;
    std::uint16_t flags = 0;
    std::uint64_t id = 0;
    std::uint32_t body_crc = 0;

    void encode(std::byte* to) const noexcept {
        store_le(to, length);
        store_le(to + 4, kind);
        store_le(to + 6, flags);
        store_le(to + 8, id);
        store_le(to + 16, body_crc);
        store_le(to + 20, crc32c(byte_span(to, 20)));
    }

    /// Reads a header from `bytes` bytes.
    ///   errors  malformed (CRC), too_large (body above max_body): nothing was allocated
    [[nodiscard]] static result<frame_header> decode(const std::byte* from, std::size_t max_body);

    /// The same without a result object, for the hot path: nothing = good.
    [[nodiscard]] std::optional<error> read(const std::byte* from, std::size_t max_body);

    /// True unless the header carries a CRC that does not fit the body.
    [[nodiscard]] bool accepts(byte_span body) const noexcept {
        return (flags & body_crc_flag) == 0 || crc32c(body) == body_crc;
    }
};

} // namespace skein::net


// ======== skein/net/detail/frame.ipp
// What a frame header must be to be believed.

#include <fmt/core.h>

namespace skein::net {

SKEIN_INLINE std::optional<error> frame_header::read(const std::byte* from, std::size_t max_body) {
    length = load_le<std::uint32_t>(from);
    kind = load_le<std::uint16_t>(from + 4);
    flags = load_le<std::uint16_t>(from + 6);
    id = load_le<std::uint64_t>(from + 8);
    body_crc = load_le<std::uint32_t>(from + 16);
    if (load_le<std::uint32_t>(from + 20) != crc32c(byte_span(from, 20))) [[unlikely]] {
        return error(errc::malformed, "frame header with a wrong checksum")
            .with_hint("the stream is out of step or the peer does not speak this protocol");
    }
    if (length > max_body) [[unlikely]] {
        return error(errc::too_large,
                     fmt::format("frame of {} bytes is above the limit of {}", length, max_body))
            .with_hint("send it in pieces or raise limits::max_frame on both sides");
    }
    return std::nullopt;
}

SKEIN_INLINE result<frame_header> frame_header::decode(const std::byte* from,
                                                       std::size_t max_body) {
    frame_header h;
    if (const auto fault = h.read(from, max_body)) return *fault;
    return h;
}

} // namespace skein::net

// ======== skein/net/network.hpp
// How streams come to be: connect and listen, the same in the real and in the simulated world.


// ======== skein/net/stream.hpp
// Ordered bytes between two peers, and the place where new ones arrive: the seam of both worlds.
//
// Protocol code sees only these two interfaces; real sockets (real_network) and the simulated
// network (sim::network) implement them. Calls belong to the thread of the owning loop.
// At most one read and one write may be under way at a time.


#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace skein::net {

/// A connected byte stream.
class stream {
public:
    stream() = default;
    stream(const stream&) = delete;
    stream& operator=(const stream&) = delete;
    virtual ~stream() = default;

    /// Waits for at least one byte; `into` must stay valid until then.
    ///   result  bytes read, 0 = the peer closed its side (or `into` is empty)
    ///   errors  reset, closed (by us), cancelled (no byte is lost)
    virtual task<std::size_t> read_some(mut_byte_span into) = 0;

    /// Writes all parts in order; returns when the kernel has all of it.
    ///   batch   the array and the bytes it names must stay valid until then
    ///   errors  reset, closed, cancelled (an unknown prefix may have been sent)
    virtual task<void> write_all(std::span<const byte_span> batch) = 0;

    /// What can be read without waiting: bytes read, 0 = the peer closed, nullopt = would wait.
    virtual std::optional<std::size_t> try_read(mut_byte_span into) = 0;

    /// Writes what fits without waiting: bytes taken from the front of the batch, 0 = would wait.
    virtual std::size_t try_write(std::span<const byte_span> batch) = 0;

    /// Tells the peer that no more bytes follow; reading goes on.
    virtual void close_send() noexcept = 0;

    /// Ends both directions; a waiting read or write throws closed. May be called again.
    virtual void close() noexcept = 0;

    /// Who is at the other end, for messages.
    [[nodiscard]] virtual std::string peer_name() const = 0;

    /// The host at the other end as a numeric address, as the network tells; empty on this host's own
    /// (Unix) sockets.
    [[nodiscard]] virtual std::string peer_host() const { return {}; }

    /// The user at the other end of a Unix socket, as the kernel tells; nothing elsewhere.
    [[nodiscard]] virtual std::optional<std::uint32_t> peer_user() const { return std::nullopt; }

    /// True when the kernel reports the death of the peer (Unix sockets): no pings needed.
    [[nodiscard]] virtual bool is_local() const noexcept { return false; }
};

/// A place that accepts streams.
class listener {
public:
    listener() = default;
    listener(const listener&) = delete;
    listener& operator=(const listener&) = delete;
    virtual ~listener() = default;

    /// Waits for the next stream; throws closed after close().
    virtual task<std::unique_ptr<stream>> accept() = 0;

    /// The bound address, with the real port where 0 was asked for.
    [[nodiscard]] virtual address local() const = 0;

    /// Stops listening; a waiting accept throws closed.
    virtual void close() noexcept = 0;
};

} // namespace skein::net


// ======== skein/net/network.hpp, continued
#include <memory>

namespace skein::net {

/// Implemented by real_network and by each host of sim::network.
class network {
public:
    network() = default;
    network(const network&) = delete;
    network& operator=(const network&) = delete;
    virtual ~network() = default;

    /// Connects once; the caller sets a deadline (with_timeout) and retries (net::reconnect_policy).
    ///   errors  refused, timeout, not_found (name), permission_denied, cancelled
    virtual task<std::unique_ptr<stream>> connect(address to) = 0;

    /// Binds and listens at once; port 0 picks a free one.
    ///   errors  already_exists (port or path in use), permission_denied, invalid_argument
    [[nodiscard]] virtual std::unique_ptr<listener> listen(address at) = 0;
};

} // namespace skein::net

// ======== skein/net/options.hpp
// Who we are and what we ask of a peer: given to connection::connect, connection::accept, endpoint.


#include <cstdint>
#include <string>

namespace skein::net {

/// Who a peer says it is; exchanged in the handshake, after both have proven the token.
struct identity {
    std::string name;
    std::uint64_t build_id = 0;      ///< of the program
    std::uint64_t registry_hash = 0; ///< of its remote functions and message types
    std::int64_t pid = 0;
    std::string host;
    std::string purpose; ///< what the connection is for; both sides must say the same
    byte_buffer extra;   ///< the upper layer's own bytes, at most limits::max_identity in all
};

/// "name (pid 7 at host)", without what the identity does not tell.
[[nodiscard]] std::string to_string(const identity& who);

/// How a connection is made; both sides give one.
struct connection_options {
    token secret;
    identity self;
    limits bounds;
    keep_alive alive;
    bool require_same_build = false; ///< refuse a peer of another build_id or registry_hash
    bool checksum_bodies = true;     ///< CRC32C of bodies we send (headers always have one)
};

} // namespace skein::net


// ======== skein/net/detail/options.ipp
// How a peer is named in messages.

#include <fmt/core.h>

namespace skein::net {

SKEIN_INLINE std::string to_string(const identity& who) {
    const std::string name = who.name.empty() ? "peer" : who.name;
    if (who.pid == 0) return who.host.empty() ? name : fmt::format("{} (at {})", name, who.host);
    if (who.host.empty()) return fmt::format("{} (pid {})", name, who.pid);
    return fmt::format("{} (pid {} at {})", name, who.pid, who.host);
}

} // namespace skein::net


// ======== skein/net/connection.hpp, continued
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::net {

/// Counts of one connection since it was made.
struct connection_statistics {
    std::uint64_t frames_in = 0, frames_out = 0, bytes_in = 0, bytes_out = 0, flushes = 0;
};

/// One end of a connection. Belongs to one loop; share it by shared_ptr. Dropping the last
/// shared_ptr aborts it; close() first for an orderly end.
class connection {
public:
    using handle = std::shared_ptr<connection>;

    /// Connects and shakes hands. Only the handshake is bounded (limits::handshake_deadline): put a
    /// with_timeout around it, or use connect_patiently. `via` must live until then.
    ///   errors  those of network::connect; permission_denied (token), mismatch (version, build),
    ///           malformed (not our protocol), timeout
    static task<handle> connect(network& via, address to, connection_options options);
    /// The other side: shakes hands on an accepted stream, of which `first` was read already.
    static task<handle> accept(std::unique_ptr<stream> from, connection_options options,
                               byte_buffer first = {});
    /// On a stream that was authenticated before (net::dial, net::authenticate).
    static handle over(std::unique_ptr<stream> authenticated, connection_options options,
                       identity peer);

    connection(const connection&) = delete;
    connection& operator=(const connection&) = delete;

    [[nodiscard]] const identity& peer() const noexcept { return peer_; }
    /// "name (pid 7 at host) over tcp:10.0.0.3:6380", for messages.
    [[nodiscard]] const std::string& peer_name() const noexcept { return peer_name_; }

    /// The host at the other end, see stream::peer_host().
    [[nodiscard]] const std::string& peer_host() const noexcept { return peer_host_; }

    /// Queues a frame; small bodies are copied into the outgoing buffer, large ones moved.
    ///   errors  closed (after close), the failure of the connection, too_large
    void send(frame f);
    /// Queues a frame whose body is head followed by body; the bytes are taken before it returns.
    void send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
              byte_span body = {});
    /// Queues a frame whose body others share: it is never copied, and stays until the kernel has it.
    void send_shared(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                     std::shared_ptr<const byte_buffer> body);
    /// As send, but without a copy of `body`, which must stay valid until this task ends. Suspends
    /// until the kernel has all of it. Cancelling it in between aborts the connection: the frame is cut.
    task<void> send_borrowed(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                             byte_span head, byte_span body);
    /// Waits while more than limits::max_send_queue bytes are queued; throws like send.
    task<void> send_ready() { return send_ready(options_.bounds.max_send_queue); }
    /// The same with a bound of the caller's own.
    task<void> send_ready(std::size_t most_queued);
    [[nodiscard]] std::size_t queued_bytes() const noexcept { return out_.bytes() + in_flight_; }
    /// Memory that its buffers hold; that of a large frame is given back soon after it.
    [[nodiscard]] std::size_t buffer_bytes() const noexcept;
    /// Hands what is queued to the kernel now instead of at the end of the turn.
    void flush() noexcept;

    /// The next frame in order; nothing after the peer's orderly close.
    ///   errors  reset, peer_lost (silent), malformed, corrupt, too_large, closed (by us), cancelled
    task<std::optional<frame>> receive();

    /// Instead of receive(): `handler` is called from the read loop for every frame, in order. The
    /// view is valid during the call only. An exception from it aborts the connection. Frames that
    /// have arrived before are handed over inside this call. A handler may set another handler.
    void set_handler(unique_function<void(const frame_view&)> handler);
    /// Called once when the connection has ended: nullptr = orderly, else why. At once if it has.
    void set_closed_handler(unique_function<void(const error*)> handler);
    /// Back-pressure towards the peer: stops reading (we still tell it that we live) until
    /// resume_reading() or close(); nothing else undoes it.
    void pause_reading() noexcept { paused_ = true; }
    void resume_reading() noexcept;

    /// Orderly end: flushes, says goodbye, waits for the peer's (at most limits::close_deadline).
    /// Never throws; afterwards the stream is closed and all work of the connection has ended.
    task<void> close();
    /// Ends at once; the peer sees a reset or an end of stream, we see `why`.
    void abort(error why) noexcept { end(std::move(why)); }
    /// Waits for the end, whoever caused it; throws only cancelled.
    task<void> wait_closed();

    [[nodiscard]] bool is_open() const noexcept { return state_ == state::open; }
    /// True when the kernel reports the death of the peer (Unix sockets).
    [[nodiscard]] bool is_local() const noexcept { return local_; }
    /// Silent for longer than keep_alive::suspect_after right now.
    [[nodiscard]] bool is_suspect() const noexcept { return suspect_; }
    /// Why it ended; nothing while open or after an orderly end.
    [[nodiscard]] const std::optional<error>& failure() const noexcept { return failure_; }
    [[nodiscard]] const connection_statistics& statistics() const noexcept { return statistics_; }

    /// Destroyed by the last owner; all its work has ended by then.
    ~connection();

private:
    enum class state : std::uint8_t { open, closing, ended };
    enum control : std::uint16_t { ping = 0xff01, pong = 0xff02, goodbye = 0xff03 };

    connection(std::unique_ptr<stream> over, connection_options options, identity peer);

    static task<void> read_loop(std::shared_ptr<connection> self);
    static task<void> write_loop(std::shared_ptr<connection> self);
    task<void> read_large();
    void part_ended() noexcept;

    frame_header header_for(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                            byte_span head, byte_span body) const;
    void check_sendable() const;
    void send_control(control kind) noexcept;
    void request_flush() noexcept { loop_.at_turn_end(hook_); }
    void progress(std::size_t written) noexcept;

    bool parse(); // false: more bytes are needed or it has ended
    void deliver(const frame_header& h, byte_span body, byte_buffer* owned);
    void call_handler(const frame_view& view);
    void on_control(std::uint16_t kind);
    [[nodiscard]] bool is_held() const noexcept { return paused_ || full_; }
    [[nodiscard]] bool is_drained() const noexcept { return out_.empty() && in_flight_ == 0; }
    void unhold(bool& why) noexcept;
    static task<void> write_pieces(connection* self, const std::vector<byte_span>* parts);
    [[nodiscard]] std::optional<error> judge(time_point now);
    void begin_goodbye() noexcept;
    void maybe_finished() noexcept;
    void end(std::optional<error> why) noexcept;
    void on_timer();

    struct flush_hook : turn_hook {
        explicit flush_hook(connection& c) noexcept
            : turn_hook([](turn_hook& h) { static_cast<flush_hook&>(h).owner.flush(); }), owner(c) {
        }
        connection& owner;
    };
    struct alive_timer : timer_node {
        explicit alive_timer(connection& c) noexcept
            : timer_node([](timer_node& t) { static_cast<alive_timer&>(t).owner.on_timer(); }),
              owner(c) {}
        connection& owner;
    };

    /// Some time after a large frame its buffer is given back.
    struct idle_timer : timer_node {
        explicit idle_timer(connection& c) noexcept
            : timer_node([](timer_node& t) { static_cast<idle_timer&>(t).owner.give_back(); }),
              owner(c) {}
        connection& owner;
    };
    void give_back() noexcept;

    loop& loop_;
    std::unique_ptr<stream> stream_;
    connection_options options_;
    identity peer_;
    std::string peer_name_, peer_host_;
    bool local_;
    connection_statistics statistics_;

    // Sending: out_ collects; the write loop takes over only when the kernel would block.
    detail::out_queue out_;
    std::size_t in_flight_ = 0; // bytes the write loop is writing
    std::uint64_t queued_total_ = 0, written_total_ = 0, queued_at_tick_ = 0, written_at_tick_ = 0;
    bool blocked_ = false; // the write loop is at work
    event wake_writer_;
    wait_queue drained_;
    flush_hook hook_{*this};

    // Receiving: one large buffer, many frames per read; a large body gets a buffer of its own.
    byte_buffer in_;
    std::size_t begin_ = 0, end_ = 0; // the bytes of in_ that are not parsed yet
    std::optional<frame_header> large_;
    byte_buffer large_body_;
    idle_timer idle_{*this};
    std::size_t large_have_ = 0;
    bool paused_ = false; // by the user
    bool full_ = false;   // the receive queue is; nothing is read while one of them holds
    event resumed_;
    unique_function<void(const frame_view&)> handler_, replacement_;
    bool in_handler_ = false, replaced_ = false; // a handler may set another one
    std::deque<frame> received_;
    std::size_t received_bytes_ = 0;
    wait_queue receivers_;

    // Life.
    state state_ = state::open;
    bool sent_goodbye_ = false, got_goodbye_ = false, suspect_ = false;
    std::optional<error> failure_;
    unique_function<void(const error*)> closed_handler_;
    event ended_;
    alive_timer timer_{*this};
    time_point last_heard_{}, last_taken_{}, timer_due_{};
    int parts_ = 0;                    // loops that run
    std::shared_ptr<connection> self_; // while they do
    scope tasks_;
};

} // namespace skein::net


// ======== skein/net/detail/connection.ipp
// The machinery of net::connection: sending and receiving.
//
// Two loops run while a connection lives: read_loop, and write_loop, which sleeps unless the kernel's
// buffer is full. Both hold the connection; the last that ends lets the stream go and gives up self_.


// ======== skein/core/sleep.hpp
// Waiting for time, in the time of the loop: virtual under simulation.
//
//     co_await sleep_for(10ms);


namespace skein {

/// What sleep_for and sleep_until return. Suspends until the time; resumed by the loop; throws
/// cancelled at once when the task is cancelled.
class sleep_awaiter : public waiter, private timer_node {
public:
    sleep_awaiter(bool relative, duration length, time_point until) noexcept
        : timer_node([](timer_node& t) { static_cast<sleep_awaiter&>(t).wake(); }),
          relative_(relative), length_(length), until_(until) {}

    bool await_ready() const noexcept { return false; }
    template <detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        if (!arm(h)) return false;
        auto& here = loop::current();
        here.set_timer(*this, relative_ ? deadline_after(here.exact_now(), length_) : until_);
        return true;
    }
    void await_resume() {
        timer_node::cancel();
        throw_if_cancelled();
    }

private:
    bool relative_;
    duration length_;
    time_point until_;
};

/// Suspends for at least the given time.
[[nodiscard]] inline sleep_awaiter sleep_for(duration length) noexcept {
    return {true, length, {}};
}
/// Suspends until the loop's time is at least `until`.
[[nodiscard]] inline sleep_awaiter sleep_until(time_point until) noexcept {
    return {false, {}, until};
}

/// What yield returns.
class yield_awaiter : public waiter {
public:
    bool await_ready() const noexcept { return false; }
    template <detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        if (!arm(h)) return false;
        wake();
        return true;
    }
    void await_resume() const { throw_if_cancelled(); }
};

/// Lets everything else that is ready run first. A cancellation point.
[[nodiscard]] inline yield_awaiter yield() noexcept { return {}; }

} // namespace skein


// ======== skein/net/detail/connection.ipp, continued
#include <algorithm>
#include <cstring>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::net {

namespace detail {
inline constexpr std::size_t read_buffer_bytes = std::size_t{128} << 10;
inline constexpr std::size_t large_body_bytes = 32768;   ///< from here on read in place
inline constexpr std::size_t first_allocation = 4 << 20; ///< for a body not yet arrived
inline constexpr std::size_t eager_flush_bytes = std::size_t{256} << 10;
inline constexpr std::size_t direct_write_bytes = std::size_t{64} << 10;
inline constexpr std::size_t write_step_bytes = std::size_t{1} << 20;  ///< progress is seen in
inline constexpr std::size_t kept_body_bytes = std::size_t{128} << 10; ///< of a connection at rest
} // namespace detail

// --- sending ----------------------------------------------------------------------------------

SKEIN_INLINE void connection::check_sendable() const {
    if (state_ == state::open) return;
    if (failure_) throw *failure_;
    throw error(errc::closed, "connection to " + peer_name_ + " is closed");
}

SKEIN_INLINE frame_header connection::header_for(std::uint16_t kind, std::uint16_t flags,
                                                 std::uint64_t id, byte_span head,
                                                 byte_span body) const {
    const std::size_t bytes = head.size() + body.size();
    if (bytes > options_.bounds.max_frame || bytes > 0xffffffffu) [[unlikely]] {
        throw error(errc::too_large, fmt::format("frame of {} bytes to {} is above the limit of {}",
                                                 bytes, peer_name_, options_.bounds.max_frame))
            .with_hint("send it in pieces or raise limits::max_frame on both sides");
    }
    frame_header h;
    h.length = static_cast<std::uint32_t>(bytes);
    h.kind = kind;
    h.flags = flags & static_cast<std::uint16_t>(~body_crc_flag);
    h.id = id;
    if (options_.checksum_bodies && bytes > 0) {
        h.flags |= body_crc_flag;
        h.body_crc = crc32c(body, crc32c(head));
    }
    return h;
}

SKEIN_INLINE void connection::send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                                   byte_span head, byte_span body) {
    check_sendable();
    const auto h = header_for(kind, flags, id, head, body);
    ++statistics_.frames_out;
    queued_total_ += frame_header::bytes + h.length;
    if (body.size() >= detail::direct_write_bytes && !blocked_) {
        // The kernel copies a large body straight from the caller; only what it refuses is kept.
        h.encode(out_.grab(frame_header::bytes));
        out_.copy(head);
        out_.borrow(body);
        flush();
        if (blocked_) out_.own_last();
        return;
    }
    std::byte* to = out_.grab(frame_header::bytes + h.length);
    h.encode(to);
    to += frame_header::bytes;
    if (!head.empty()) std::memcpy(to, head.data(), head.size());
    if (!body.empty()) std::memcpy(to + head.size(), body.data(), body.size());
    if (out_.bytes() >= detail::eager_flush_bytes) {
        flush();
    } else {
        request_flush();
    }
}

SKEIN_INLINE void connection::send(frame f) {
    if (f.body.size() < limit::gather_bytes) {
        send(f.kind, f.flags, f.id, f.body);
        return;
    }
    check_sendable();
    const auto h = header_for(f.kind, f.flags, f.id, f.body, {});
    ++statistics_.frames_out;
    queued_total_ += frame_header::bytes + h.length;
    h.encode(out_.grab(frame_header::bytes));
    out_.move(std::move(f.body));
    if (out_.bytes() >= detail::eager_flush_bytes) {
        flush();
    } else {
        request_flush();
    }
}

SKEIN_INLINE void connection::send_shared(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                                          std::shared_ptr<const byte_buffer> body) {
    check_sendable();
    const auto h = header_for(kind, flags, id, *body, {});
    ++statistics_.frames_out;
    queued_total_ += frame_header::bytes + h.length;
    h.encode(out_.grab(frame_header::bytes));
    out_.share(std::move(body));
    if (out_.bytes() >= detail::eager_flush_bytes) {
        flush();
    } else {
        request_flush();
    }
}

SKEIN_INLINE task<void> connection::send_borrowed(std::uint16_t kind, std::uint16_t flags,
                                                  std::uint64_t id, byte_span head,
                                                  byte_span body) {
    check_sendable();
    const auto keep = self_;
    const auto h = header_for(kind, flags, id, head, body);
    ++statistics_.frames_out;
    h.encode(out_.grab(frame_header::bytes));
    out_.copy(head);
    out_.borrow(body);
    queued_total_ += frame_header::bytes + h.length;
    const std::uint64_t mine = queued_total_;
    flush();
    try {
        while (written_total_ < mine && state_ != state::ended) {
            auto more = drained_.wait();
            co_await more;
        }
    } catch (...) {
        end(error(errc::aborted, "a frame to " + peer_name_ + " was cut by cancellation"));
        throw;
    }
    if (written_total_ < mine) check_sendable();
}

SKEIN_INLINE task<void> connection::send_ready(std::size_t most_queued) {
    const auto keep = self_;
    while (queued_bytes() > most_queued && state_ == state::open) {
        auto more = drained_.wait();
        co_await more;
    }
    check_sendable();
}

/// Writes what the kernel takes; the rest is the write loop's.
SKEIN_INLINE void connection::flush() noexcept {
    if (blocked_ || out_.empty() || state_ == state::ended) return;
    try {
        std::size_t written = 0;
        const std::size_t asked = out_.bytes();
        if (out_.simple()) {
            const byte_span all = out_.open();
            written = stream_->try_write(std::span<const byte_span>(&all, 1));
        } else {
            thread_local std::vector<byte_span> parts;
            out_.views(parts);
            written = stream_->try_write(parts);
        }
        out_.consume(written);
        ++statistics_.flushes;
        if (written < asked) {
            blocked_ = true;
            wake_writer_.set();
        }
        progress(written);
    } catch (...) {
        end(to_error(std::current_exception()));
    }
}

SKEIN_INLINE void connection::progress(std::size_t written) noexcept {
    statistics_.bytes_out += written;
    written_total_ += written;
    if (!drained_.empty()) drained_.wake_all();
    if (sent_goodbye_) maybe_finished();
}

/// Writes all; in steps when the peer is judged by its progress.
SKEIN_INLINE task<void> connection::write_pieces(connection* self,
                                                 const std::vector<byte_span>* parts) {
    const std::size_t most = self->timer_.is_set() ? detail::write_step_bytes : SIZE_MAX;
    std::vector<byte_span> step;
    std::size_t at = 0, offset = 0;
    while (at < parts->size() && self->state_ != state::ended) {
        step.clear();
        std::size_t bytes = 0;
        while (at < parts->size() && bytes < most) {
            const auto rest = (*parts)[at].subspan(offset);
            const auto piece = rest.first(std::min(rest.size(), most - bytes));
            step.push_back(piece);
            bytes += piece.size();
            offset += piece.size();
            if (piece.size() == rest.size()) {
                ++at;
                offset = 0;
            }
        }
        auto writing = self->stream_->write_all(step);
        co_await writing;
        ++self->statistics_.flushes;
        self->in_flight_ -= bytes;
        self->progress(bytes);
    }
}

SKEIN_INLINE task<void> connection::write_loop(std::shared_ptr<connection> self) {
    connection& c = *self;
    try {
        std::vector<byte_span> parts;
        while (c.state_ != state::ended) {
            auto wanted = c.wake_writer_.wait();
            co_await wanted;
            c.wake_writer_.reset();
            while (!c.out_.empty() && c.state_ != state::ended) {
                detail::out_queue taken = std::exchange(c.out_, detail::out_queue());
                taken.views(parts);
                c.in_flight_ = taken.bytes();
                auto writing = write_pieces(&c, &parts);
                co_await writing;
            }
            c.blocked_ = false;
        }
    } catch (...) {
        c.end(to_error(std::current_exception()));
    }
    c.in_flight_ = 0;
    c.part_ended();
}

SKEIN_INLINE void connection::send_control(control kind) noexcept {
    if (state_ == state::ended || sent_goodbye_) return;
    frame_header h;
    h.kind = kind;
    h.encode(out_.grab(frame_header::bytes));
    queued_total_ += frame_header::bytes;
    request_flush();
}

// --- receiving --------------------------------------------------------------------------------

SKEIN_INLINE task<void> connection::read_loop(std::shared_ptr<connection> self) {
    connection& c = *self;
    try {
        std::size_t since_yield = 0;
        while (c.state_ != state::ended) {
            if (c.is_held()) {
                c.resumed_.reset();
                auto resumed = c.resumed_.wait();
                co_await resumed;
                c.parse();
                continue;
            }
            if (c.large_) {
                since_yield += c.large_->length;
                auto body = c.read_large();
                co_await body;
            } else {
                if (c.begin_ == c.end_) {
                    c.begin_ = c.end_ = 0;
                } else if (c.in_.size() - c.end_ < detail::large_body_bytes) {
                    std::memmove(c.in_.data(), c.in_.data() + c.begin_, c.end_ - c.begin_);
                    c.end_ -= c.begin_;
                    c.begin_ = 0;
                }
                auto reading = c.stream_->read_some(mut_byte_span(c.in_).subspan(c.end_));
                const std::size_t got = co_await reading;
                if (got == 0) {
                    if (c.got_goodbye_ || c.sent_goodbye_) {
                        c.end(std::nullopt);
                    } else {
                        c.end(error(errc::reset,
                                    "connection to " + c.peer_name_ + " ended without a goodbye")
                                  .with_hint("the process there ended or was killed"));
                    }
                    break;
                }
                c.end_ += got;
                c.statistics_.bytes_in += got;
                since_yield += got;
                c.last_heard_ = c.loop_.now();
                c.suspect_ = false;
                c.parse();
            }
            if (since_yield >= detail::eager_flush_bytes) { // others get their turn, replies leave
                since_yield = 0;
                auto others = yield();
                co_await others;
            }
        }
    } catch (...) {
        c.end(to_error(std::current_exception()));
    }
    c.part_ended();
}

/// Hands out the whole frames in in_; prepares for a large one.
SKEIN_INLINE bool connection::parse() {
    while (state_ != state::ended && !is_held()) {
        const std::size_t have = end_ - begin_;
        if (have < frame_header::bytes) return false;
        frame_header h;
        if (const auto fault = h.read(in_.data() + begin_, options_.bounds.max_frame)) {
            throw error(fault->code(), fault->text() + " from " + peer_name_)
                .with_hint(fault->hint());
        }
        const std::size_t here = have - frame_header::bytes;
        if (here < h.length) {
            if (h.length < detail::large_body_bytes) return false;
            begin_ +=
                frame_header::bytes; // the body gets a buffer of its own, filled by read_large
            if (const auto first = std::min<std::size_t>(h.length, detail::first_allocation);
                large_body_.size() < first) {
                large_body_.resize(first);
            }
            std::memcpy(large_body_.data(), in_.data() + begin_, here);
            large_have_ = here;
            begin_ = end_ = 0;
            large_ = h;
            return false;
        }
        const auto body = byte_span(in_).subspan(begin_ + frame_header::bytes, h.length);
        begin_ += frame_header::bytes + h.length;
        deliver(h, body, nullptr);
    }
    return true;
}

/// Reads the rest of a large body straight to its place. Memory follows what has arrived.
SKEIN_INLINE task<void> connection::read_large() {
    const frame_header h = *large_;
    while (large_have_ < h.length) {
        if (large_have_ == large_body_.size()) {
            large_body_.resize(std::min<std::size_t>(h.length, 2 * large_have_));
        }
        const std::size_t until = std::min<std::size_t>(h.length, large_body_.size());
        auto reading = stream_->read_some(
            mut_byte_span(large_body_).subspan(large_have_, until - large_have_));
        const std::size_t got = co_await reading;
        if (got == 0) {
            throw error(errc::reset,
                        fmt::format("connection to {} ended inside a frame ({} of {} bytes)",
                                    peer_name_, large_have_, h.length));
        }
        large_have_ += got;
        statistics_.bytes_in += got;
        last_heard_ = loop_.now();
        suspect_ = false;
    }
    large_.reset();
    large_body_.resize(h.length);
    deliver(h, large_body_, &large_body_);
    if (large_body_.capacity() > 2 * detail::first_allocation) {
        large_body_ = byte_buffer();
    } else if (large_body_.capacity() > detail::kept_body_bytes && state_ != state::ended) {
        loop_.set_timer(idle_, deadline_after(loop_.now(), options_.alive.ping_after));
    }
}

SKEIN_INLINE std::size_t connection::buffer_bytes() const noexcept {
    return out_.capacity() + in_flight_ + in_.capacity() + large_body_.capacity();
}

SKEIN_INLINE void connection::give_back() noexcept {
    if (!large_) large_body_ = byte_buffer();
}

SKEIN_INLINE void connection::deliver(const frame_header& h, byte_span body, byte_buffer* owned) {
    if (!h.accepts(body)) {
        throw error(errc::corrupt,
                    fmt::format("body of frame {} (kind {}, {} bytes) from {} has a wrong "
                                "checksum",
                                h.id, h.kind, h.length, peer_name_));
    }
    if (h.kind >= first_reserved_kind) {
        on_control(h.kind);
        return;
    }
    if (got_goodbye_) throw error(errc::malformed, "a frame after the goodbye from " + peer_name_);
    ++statistics_.frames_in;
    frame_view view;
    view.kind = h.kind;
    view.flags = h.flags & static_cast<std::uint16_t>(~body_crc_flag);
    view.id = h.id;
    view.body = body;
    view.owned = owned;
    if (handler_) {
        call_handler(view);
        return;
    }
    frame f;
    f.kind = view.kind;
    f.flags = view.flags;
    f.id = view.id;
    f.body = view.take_body();
    received_bytes_ += f.body.size() + frame_header::bytes;
    received_.push_back(std::move(f));
    if (received_bytes_ > options_.bounds.max_receive_queue) full_ = true;
    receivers_.wake_one();
}

/// Keeps the handler alive while it runs, also when it sets another one.
SKEIN_INLINE void connection::call_handler(const frame_view& view) {
    struct running {
        explicit running(connection& of) noexcept : c(of) { of.in_handler_ = true; }
        running(const running&) = delete;
        ~running() {
            c.in_handler_ = false;
            if (std::exchange(c.replaced_, false)) c.handler_ = std::move(c.replacement_);
        }
        connection& c;
    } guard(*this);
    handler_(view);
}

SKEIN_INLINE task<std::optional<frame>> connection::receive() {
    const auto keep = self_;
    while (received_.empty()) {
        if (state_ == state::ended) {
            if (failure_) throw *failure_;
            co_return std::nullopt;
        }
        if (got_goodbye_) co_return std::nullopt;
        auto more = receivers_.wait();
        co_await more;
    }
    std::optional<frame> next(std::move(received_.front()));
    received_.pop_front();
    received_bytes_ -= next->body.size() + frame_header::bytes;
    if (received_bytes_ <= options_.bounds.max_receive_queue / 2) unhold(full_);
    if (!received_.empty()) receivers_.wake_one(); // a wake that a cancelled receiver took with it
    co_return next;
}

SKEIN_INLINE void connection::set_handler(unique_function<void(const frame_view&)> handler) {
    const auto keep = self_;
    if (in_handler_) {
        replacement_ = std::move(handler);
        replaced_ = true;
        return;
    }
    handler_ = std::move(handler);
    try {
        while (handler_ && !received_.empty()) {
            frame f = std::move(received_.front());
            received_.pop_front();
            received_bytes_ -= f.body.size() + frame_header::bytes;
            frame_view view;
            view.kind = f.kind;
            view.flags = f.flags;
            view.id = f.id;
            view.body = f.body;
            view.owned = &f.body;
            call_handler(view);
        }
    } catch (...) {
        end(to_error(std::current_exception()));
    }
    if (received_bytes_ == 0) unhold(full_);
}

SKEIN_INLINE void connection::resume_reading() noexcept { unhold(paused_); }

/// Ends one reason not to read; reading goes on when it was the last.
SKEIN_INLINE void connection::unhold(bool& why) noexcept {
    if (!std::exchange(why, false)) return;
    if (!is_held()) resumed_.set();
}

SKEIN_INLINE void connection::on_control(std::uint16_t kind) {
    switch (kind) {
    case ping: // bytes that are under way say as much as a pong, and pings must not fill our queue
        if (is_drained()) send_control(pong);
        return;
    case pong: return;
    case goodbye:
        got_goodbye_ = true;
        receivers_.wake_all();
        begin_goodbye();
        maybe_finished();
        return;
    default:
        throw error(errc::malformed,
                    fmt::format("unknown control frame {:#x} from {}", kind, peer_name_));
    }
}

} // namespace skein::net

// ======== skein/net/detail/connection_life.ipp
// How a net::connection begins and ends; comes after detail/connection.ipp.


// ======== skein/core/log.hpp
// Structured log lines: one event, one line, text for people and JSON for machines.
//
//     logging::info("net", "connection accepted", {{"peer", name}, {"bytes", n}});
//     12:30:01.250 I net connection accepted peer=tcp:10.0.0.2:6380 bytes=120
//
// SKEIN_LOG_LEVEL = trace | debug | info | warn | error | off (default info), SKEIN_LOG = json for
// JSON lines. A line goes to standard error in one write, so that lines of several processes do not
// mix. Thread-safe.


#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <fmt/core.h>

namespace skein::logging {

/// How grave a line is; `off` is above all of them.
enum class level : std::uint8_t { trace, debug, info, warn, error, off };

/// key=value of a line. Numbers stay numbers in JSON; everything else is text.
struct field {
    std::string key, value;
    bool is_number = false;

    template <class T>
    field(std::string_view name, const T& v) : key(name) {
        if constexpr (std::same_as<T, bool>) {
            value = v ? "true" : "false";
            is_number = true;
        } else if constexpr (std::is_floating_point_v<T>) {
            value = fmt::format("{}", v);
            is_number = v - v == T(0); // finite
        } else if constexpr (std::is_arithmetic_v<T> && !std::same_as<T, char>) {
            value = fmt::format("{}", v);
            is_number = true;
        } else if constexpr (std::convertible_to<const T&, std::string_view>) {
            value = std::string_view(v);
        } else if constexpr (requires { std::chrono::duration<double>(v); }) {
            value = fmt::format("{:.6g}s", std::chrono::duration<double>(v).count());
        } else {
            value = fmt::format("{}", v);
        }
    }
};

/// One event, as a sink gets it. Views live for the call only.
struct record {
    level severity = level::info;
    std::string_view component, text;
    std::span<const field> fields;
    std::chrono::milliseconds wall{}; ///< since 1970-01-01 UTC
};

/// A byte that a terminal may take for a command.
[[nodiscard]] constexpr bool is_control(char c) noexcept {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

/// Quotes text for JSON; bytes that are not UTF-8 are passed on as they are.
void append_json_string(std::string& to, std::string_view text);

/// The line for people, without a line end: HH:MM:SS.mmm I component text key=value.
[[nodiscard]] std::string format_text(const record& r);
/// The line for machines, without a line end.
[[nodiscard]] std::string format_json(const record& r);

/// True if a line of this level would be written: ask before building something expensive.
[[nodiscard]] bool enabled(level l) noexcept;
/// Lines below this level are not written. Any thread.
void set_level(level l) noexcept;
/// The level in force: that of set_level(), or of SKEIN_LOG_LEVEL.
[[nodiscard]] level get_level() noexcept;

/// Replaces where lines go (empty: standard error again). The sink is called from any thread.
using sink = std::function<void(const record&)>;
/// See sink. Any thread.
void set_sink(sink to);

/// Writes one line.
void write(level severity, std::string_view component, std::string_view text,
           std::span<const field> with);

/// The key=value pairs of a line, as `{{"peer", name}, {"bytes", n}}`.
using fields = std::initializer_list<field>;
/// write() for what only the author of the component wants to read.
inline void trace(std::string_view component, std::string_view text, fields f = {}) {
    write(level::trace, component, text, {f.begin(), f.size()});
}
/// write() for what helps to find a fault.
inline void debug(std::string_view component, std::string_view text, fields f = {}) {
    write(level::debug, component, text, {f.begin(), f.size()});
}
/// write() for what happens in the normal course of things.
inline void info(std::string_view component, std::string_view text, fields f = {}) {
    write(level::info, component, text, {f.begin(), f.size()});
}
/// write() for what went wrong and was dealt with.
inline void warn(std::string_view component, std::string_view text, fields f = {}) {
    write(level::warn, component, text, {f.begin(), f.size()});
}
/// write() for what went wrong and was not.
inline void error(std::string_view component, std::string_view text, fields f = {}) {
    write(level::error, component, text, {f.begin(), f.size()});
}

} // namespace skein::logging


// ======== skein/core/detail/log.ipp
// How log lines are made and where they go.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>

#include <unistd.h>

namespace skein::logging {

SKEIN_INLINE void append_json_string(std::string& to, std::string_view text) {
    to += '"';
    for (const char c : text) {
        switch (c) {
        case '"': to += "\\\""; break;
        case '\\': to += "\\\\"; break;
        case '\n': to += "\\n"; break;
        case '\r': to += "\\r"; break;
        case '\t': to += "\\t"; break;
        default:
            if (is_control(c))
                to += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
            else
                to += c;
        }
    }
    to += '"';
}

SKEIN_INLINE std::string format_text(const record& r) {
    const std::time_t seconds = static_cast<std::time_t>(r.wall.count() / 1000);
    std::tm parts{};
    ::localtime_r(&seconds, &parts);
    std::string line =
        fmt::format("{:02}:{:02}:{:02}.{:03} {} {} ", parts.tm_hour, parts.tm_min, parts.tm_sec,
                    r.wall.count() % 1000, "TDIWE?"[static_cast<int>(r.severity)], r.component);
    for (const char c : r.text) {
        if (c == '\n' || !is_control(c))
            line += c == '\n' ? ' ' : c;
        else // text may come from a peer: no escape sequences for the reader's terminal
            line += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    }
    for (const auto& f : r.fields) {
        line += ' ';
        line += f.key;
        line += '=';
        if (f.value.empty() || f.value.find_first_of(" \"=") != std::string::npos ||
            std::any_of(f.value.begin(), f.value.end(), is_control))
            append_json_string(line, f.value);
        else
            line += f.value;
    }
    return line;
}

SKEIN_INLINE std::string format_json(const record& r) {
    static constexpr std::string_view names[] = {"trace", "debug", "info", "warn", "error", "off"};
    std::string line =
        fmt::format("{{\"time_ms\":{},\"level\":\"{}\",\"component\":", r.wall.count(),
                    names[static_cast<int>(r.severity)]);
    append_json_string(line, r.component);
    line += ",\"text\":";
    append_json_string(line, r.text);
    for (const auto& f : r.fields) {
        line += ',';
        append_json_string(line, f.key);
        line += ':';
        if (f.is_number)
            line += f.value;
        else
            append_json_string(line, f.value);
    }
    line += '}';
    return line;
}

namespace detail {
SKEIN_INLINE level level_from_environment() noexcept {
    const char* text = std::getenv("SKEIN_LOG_LEVEL");
    const std::string_view name = text == nullptr ? "info" : text;
    if (name == "trace") return level::trace;
    if (name == "debug") return level::debug;
    if (name == "warn") return level::warn;
    if (name == "error") return level::error;
    if (name == "off") return level::off;
    return level::info;
}

struct state {
    std::atomic<level> threshold{level_from_environment()};
    std::mutex mutex; // guards `target`
    std::shared_ptr<const sink> target;
};
SKEIN_INLINE state& the_state() {
    static state* const s = new state; // never destroyed: lines may come from late destructors
    return *s;
}

SKEIN_INLINE void to_stderr(const record& r) {
    static const bool json = [] {
        const char* mode = std::getenv("SKEIN_LOG");
        return mode != nullptr && std::string_view(mode) == "json";
    }();
    std::string line = json ? format_json(r) : format_text(r);
    line += '\n';
    std::string_view rest = line;
    while (!rest.empty()) {
        const auto n = ::write(STDERR_FILENO, rest.data(), rest.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; // nowhere left to complain
        rest.remove_prefix(static_cast<std::size_t>(n));
    }
}
} // namespace detail

SKEIN_INLINE bool enabled(level l) noexcept {
    return l >= detail::the_state().threshold.load(std::memory_order_relaxed) && l != level::off;
}
SKEIN_INLINE void set_level(level l) noexcept { detail::the_state().threshold = l; }
SKEIN_INLINE level get_level() noexcept { return detail::the_state().threshold; }

SKEIN_INLINE void set_sink(sink to) {
    auto next = to ? std::make_shared<const sink>(std::move(to)) : nullptr;
    auto& s = detail::the_state();
    const std::lock_guard lock(s.mutex);
    s.target.swap(next);
}

SKEIN_INLINE void write(level severity, std::string_view component, std::string_view text,
                        std::span<const field> with) {
    if (!enabled(severity)) return;
    record r;
    r.severity = severity;
    r.component = component;
    r.text = text;
    r.fields = with;
    r.wall = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::system_clock::now().time_since_epoch());
    auto& s = detail::the_state();
    std::shared_ptr<const sink> target;
    {
        const std::lock_guard lock(s.mutex);
        target = s.target;
    }
    if (target)
        (*target)(r);
    else
        detail::to_stderr(r);
}

} // namespace skein::logging

// ======== skein/core/timeout.hpp
// A limit on how long a task may take, in the loop's time.
//
//     auto answer = with_timeout(client.ask(question), 2s);
//     auto text = co_await std::move(answer);            // or throws errc::timeout


#include <utility>

#include <fmt/core.h>

namespace skein {

/// Runs work; at `until` cancels it, waits for its end, and throws errc::timeout. A value that is
/// there in time, or that the work still gives after being cancelled, is delivered.
template <class T>
[[nodiscard]] task<T> with_deadline(task<T> work, time_point until) {
    auto* outer = co_await detail::current_cancel{};
    struct limit : timer_node {
        explicit limit(detail::cancel_state* parent)
            : timer_node([](timer_node& t) {
                  auto& self = static_cast<limit&>(t);
                  self.passed = true;
                  self.cancel_work.request();
              }),
              cancel_work(parent) {}
        bool passed = false;
        detail::cancel_state cancel_work;
    } timer(outer);
    const auto begin = loop::current().exact_now();
    loop::current().set_timer(timer, until);
    detail::await_under<T> inner(std::move(work), &timer.cancel_work);
    try {
        co_return co_await inner;
    } catch (const error& e) {
        const bool ours = e.code() == errc::cancelled && timer.passed;
        if (!ours || (outer != nullptr && outer->requested())) throw;
        throw error(errc::timeout,
                    fmt::format("no answer within {:.3g} s", to_seconds(until - begin)));
    }
}

/// The same with a length from now on.
template <class T>
[[nodiscard]] task<T> with_timeout(task<T> work, duration limit) {
    auto timed = with_deadline(std::move(work), deadline_after(loop::current().exact_now(), limit));
    co_return co_await timed;
}

} // namespace skein

// ======== skein/net/handshake.hpp
// Mutual proof of the token, then the exchange of identities; before anything else is decoded.
//
//   connecting side                          accepting side
//   hello: magic version role nonce   --->
//                                     <---   hello, proof
//   status, proof, identity, mac      --->
//                                     <---   status, identity, mac
//
// proof = HMAC-SHA256(token, label of the role, both hellos): the nonces make it fresh, the label
// keeps a peer from sending our own proof back. The token never travels. Before the peer's proof is
// checked, everything fits into fixed buffers. Foreign bytes are refused at the first that differs. The
// identities name a purpose, so that two protocols that share a token never take each other's streams.


#include <cstddef>
#include <cstdint>
#include <memory>

namespace skein::net {

/// Both ends must have the same one, or the handshake refuses.
inline constexpr std::uint16_t protocol_version = 2;

/// Which end of the stream this is.
enum class side : std::uint16_t { connecting = 1, accepting = 2 };

/// The bytes of the first message, in which both sides are told from other protocols.
inline constexpr std::size_t hello_bytes = 48;

/// Shakes hands on a fresh stream; both must outlive the task. The caller sets the deadline.
///   first   what the caller has read of the stream already, at most hello_bytes; valid until the end
///   result  the peer's identity
///   errors  permission_denied (token), malformed (foreign bytes), mismatch (version, purpose, build),
///           too_large, reset
task<identity> handshake(stream& with, side mine, const connection_options& options,
                         byte_span first = {});

/// The same within limits::handshake_deadline; when it fails, the stream is closed and the error names
/// the peer. The stream must outlive the task.
///   errors  those of handshake; timeout
task<identity> authenticate(stream& with, side mine, connection_options options,
                            byte_buffer first = {});

/// A stream whose peer has proven the token.
struct authenticated_stream {
    std::unique_ptr<net::stream> stream;
    identity peer;
};

/// Connects once and shakes hands. Only the handshake is bounded: put a with_timeout around it, or use
/// dial_patiently (dial.hpp). `via` must live until then.
///   errors  those of network::connect and authenticate
task<authenticated_stream> dial(network& via, address to, connection_options options);

} // namespace skein::net


// ======== skein/net/detail/handshake.ipp
// Both sides of the handshake. Before the peer's proof is checked, everything fits into fixed buffers.


// ======== skein/net/detail/handshake.hpp
// What the two sides of a handshake send each other.


#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

namespace skein::net {
enum class side : std::uint16_t; // of handshake.hpp
} // namespace skein::net

namespace skein::net::detail {

enum class handshake_status : std::uint32_t { good = 0, token_differs = 1, build_differs = 2 };

/// magic(8) version(2) zero(2) role(2) zero(2) nonce(32)
struct hello {
    static constexpr std::size_t bytes = 48; // hello_bytes
    static constexpr std::array<char, 8> magic = {'s', 'k', 'e', 'i', 'n', '\r', '\n', '\0'};
    std::array<std::byte, bytes> raw{};

    void fill(side mine, std::uint16_t version, random_source& random) {
        std::memcpy(raw.data(), magic.data(), magic.size());
        store_le(raw.data() + 8, version);
        store_le(raw.data() + 12, static_cast<std::uint16_t>(mine));
        random.fill(mut_byte_span(raw).subspan(16));
    }
    [[nodiscard]] std::uint16_t version() const noexcept {
        return load_le<std::uint16_t>(raw.data() + 8);
    }
    [[nodiscard]] std::uint16_t role() const noexcept {
        return load_le<std::uint16_t>(raw.data() + 12);
    }
};

/// What comes with each side's verdict: status(4) proof(32) identity length(4).
struct verdict {
    static constexpr std::size_t bytes = 40;
    std::array<std::byte, bytes> raw{};

    void fill(handshake_status status, byte_span proof, std::size_t identity_bytes) {
        store_le(raw.data(), static_cast<std::uint32_t>(status));
        std::copy(proof.begin(), proof.end(), raw.begin() + 4);
        store_le(raw.data() + 36, static_cast<std::uint32_t>(identity_bytes));
    }
    [[nodiscard]] std::uint32_t status() const noexcept {
        return load_le<std::uint32_t>(raw.data());
    }
    [[nodiscard]] byte_span proof() const noexcept { return byte_span(raw).subspan(4, 32); }
    [[nodiscard]] std::size_t identity_bytes() const noexcept {
        return load_le<std::uint32_t>(raw.data() + 36);
    }
};

/// Judges a hello as far as it has arrived; nothing = good so far.
[[nodiscard]] std::optional<error> check_hello(byte_span so_far, side from);
task<void> read_exactly(stream* from, mut_byte_span into);
task<void> write_one(stream* to, byte_span bytes);

} // namespace skein::net::detail


// ======== skein/net/detail/handshake.ipp, continued
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace skein::net {
namespace detail {

/// One side's half of the secrets of a handshake.
struct handshake_keys {
    sha256_digest connecting_proof, accepting_proof, session;

    handshake_keys(const token& secret, const hello& connecting, const hello& accepting) {
        const auto make = [&](std::string_view label) {
            return hmac_sha256(secret.bytes(), as_bytes(label), connecting.raw, accepting.raw);
        };
        connecting_proof = make("skein/1 connecting side");
        accepting_proof = make("skein/1 accepting side..");
        session = make("skein/1 session key.....");
    }
    [[nodiscard]] sha256_digest mac(side from, byte_span identity_bytes) const {
        const std::byte role{static_cast<unsigned char>(from)};
        return hmac_sha256(session, byte_span(&role, 1), identity_bytes);
    }
};

/// "an HTTP request", "a TLS client", or the first bytes.
SKEIN_INLINE std::string describe_foreign(byte_span first) {
    const auto text = as_text(first);
    for (const char* verb :
         {"GET ", "POST ", "HEAD ", "PUT ", "OPTIONS ", "DELETE ", "CONNECT ", "HTTP/"}) {
        if (text.starts_with(
                std::string_view(verb).substr(0, std::max<std::size_t>(text.size(), 3)))) {
            return "it looks like HTTP";
        }
    }
    if (first.size() >= 2 && first[0] == std::byte{0x16} && first[1] == std::byte{0x03}) {
        return "it looks like TLS";
    }
    if (text.starts_with("SSH-")) return "it looks like SSH";
    return "it begins with the bytes " +
           skein::to_hex(first.first(std::min<std::size_t>(first.size(), 8)));
}

SKEIN_INLINE std::optional<error> check_hello(byte_span so_far, side from) {
    const std::size_t known = std::min(so_far.size(), hello::magic.size());
    if (std::memcmp(so_far.data(), hello::magic.data(), known) != 0) {
        return error(errc::malformed,
                     "the peer does not speak this protocol: " + describe_foreign(so_far))
            .with_hint("another program is at the other end; check address and port");
    }
    if (so_far.size() < hello::bytes) return std::nullopt;
    if (const auto theirs = load_le<std::uint16_t>(so_far.data() + 8); theirs != protocol_version) {
        return error(errc::mismatch, fmt::format("the peer speaks protocol version {}, we speak {}",
                                                 theirs, protocol_version))
            .with_hint("build both sides from the same version of skein");
    }
    if (load_le<std::uint16_t>(so_far.data() + 12) != static_cast<std::uint16_t>(from)) {
        return error(errc::malformed, "the peer claims the same role as we have")
            .with_hint("our own bytes may be coming back (an echo service or a proxy loop)");
    }
    return std::nullopt;
}

SKEIN_INLINE error token_refused(const token& ours) {
    return error(errc::permission_denied, "the peer has another token")
        .with_hint(fmt::format("give both sides the same token (ours has the fingerprint {})",
                               ours.empty() ? "none" : ours.fingerprint()));
}

SKEIN_INLINE task<void> read_exactly(stream* from, mut_byte_span into) {
    while (!into.empty()) {
        auto reading = from->read_some(into);
        const std::size_t got = co_await reading;
        if (got == 0) {
            throw error(errc::reset, "the peer closed the connection during the handshake")
                .with_hint("its log says why: another token, another build, or it is stopping");
        }
        into = into.subspan(got);
    }
}

SKEIN_INLINE task<void> write_one(stream* to, byte_span bytes) {
    auto writing = to->write_all(std::span<const byte_span>(&bytes, 1));
    co_await writing;
}

/// Sends a verdict, and our identity with its MAC if the status is good or build_differs.
SKEIN_INLINE task<void> send_verdict(stream* to, handshake_status status, sha256_digest proof,
                                     byte_buffer identity_bytes, sha256_digest mac) {
    verdict v;
    v.fill(status, proof, identity_bytes.size());
    byte_buffer out = to_buffer(byte_span(v.raw));
    if (status != handshake_status::token_differs) {
        append(out, identity_bytes);
        append(out, mac);
    }
    auto writing = write_one(to, out);
    co_await writing;
}

/// Reads the identity that follows a verdict: its length was checked, its MAC is.
SKEIN_INLINE task<identity> read_identity(stream* from, std::size_t bytes, std::size_t most,
                                          side sender, const handshake_keys* keys) {
    if (bytes > most) {
        throw error(errc::too_large,
                    fmt::format("identity of {} bytes is above the limit of {}", bytes, most));
    }
    byte_buffer block(bytes);
    auto reading = read_exactly(from, block);
    co_await reading;
    sha256_digest mac{};
    auto reading_mac = read_exactly(from, mac);
    co_await reading_mac;
    if (!equal_constant_time(mac, keys->mac(sender, block))) {
        throw error(errc::permission_denied, "the peer's identity was changed on the way");
    }
    identity peer;
    const auto decoded = wire::decode(block, peer);
    if (!decoded)
        throw error(errc::malformed, "the peer's identity does not decode")
            .with_cause(decoded.error().what());
    co_return peer;
}

SKEIN_INLINE std::optional<error> check_peer(const connection_options& mine, const identity& peer) {
    if (peer.purpose != mine.self.purpose) {
        const auto shown = [](const std::string& p) { return p.empty() ? "nothing named" : p; };
        return error(errc::mismatch,
                     fmt::format("{} is there for '{}', we for '{}'", to_string(peer),
                                 shown(peer.purpose), shown(mine.self.purpose)))
            .with_hint(
                "the address belongs to another part of the program; check address and port");
    }
    if (!mine.require_same_build) return std::nullopt;
    const bool same_build = peer.build_id == mine.self.build_id;
    if (same_build && peer.registry_hash == mine.self.registry_hash) return std::nullopt;
    return error(errc::mismatch,
                 fmt::format("{} is another build of the program: {} {:016x}, ours is {:016x}",
                             to_string(peer), same_build ? "registry" : "build",
                             same_build ? peer.registry_hash : peer.build_id,
                             same_build ? mine.self.registry_hash : mine.self.build_id))
        .with_hint("start the same executable on both sides");
}

/// The rest of the connecting side, from the peer's proof on.
SKEIN_INLINE task<identity> finish_connecting(stream* with, const connection_options* options,
                                              const handshake_keys* keys, byte_buffer self) {
    const sha256_digest none{};
    verdict v;
    sha256_digest proof{};
    auto reading_proof = read_exactly(with, proof);
    co_await reading_proof;
    const bool good = equal_constant_time(proof, keys->accepting_proof);
    if (!good) {
        auto refusing =
            send_verdict(with, handshake_status::token_differs, none, byte_buffer(), none);
        co_await refusing;
        throw token_refused(options->secret);
    }
    const auto mac = keys->mac(side::connecting, self);
    auto sending =
        send_verdict(with, handshake_status::good, keys->connecting_proof, std::move(self), mac);
    co_await sending;
    auto reading_verdict = read_exactly(with, v.raw);
    co_await reading_verdict;
    if (v.status() == static_cast<std::uint32_t>(handshake_status::token_differs)) {
        throw token_refused(options->secret);
    }
    auto reading = read_identity(with, v.identity_bytes(), options->bounds.max_identity,
                                 side::accepting, keys);
    identity peer = co_await reading;
    if (auto fault = check_peer(*options, peer)) throw *fault;
    if (v.status() != static_cast<std::uint32_t>(handshake_status::good)) {
        throw error(errc::mismatch, to_string(peer) + " refuses another build of the program")
            .with_hint("start the same executable on both sides");
    }
    co_return peer;
}

/// The rest of the accepting side, from its answer to the hello on.
SKEIN_INLINE task<identity> finish_accepting(stream* with, const connection_options* options,
                                             const handshake_keys* keys, byte_buffer self,
                                             byte_span out) {
    const sha256_digest none{};
    verdict v;
    byte_buffer answer = to_buffer(byte_span(out));
    append(answer, keys->accepting_proof);
    auto answering = write_one(with, answer);
    co_await answering;
    auto reading_verdict = read_exactly(with, v.raw);
    co_await reading_verdict;
    if (v.status() != static_cast<std::uint32_t>(handshake_status::good)) {
        throw token_refused(options->secret);
    }
    if (!equal_constant_time(v.proof(), keys->connecting_proof)) {
        auto refusing =
            send_verdict(with, handshake_status::token_differs, none, byte_buffer(), none);
        co_await refusing;
        throw token_refused(options->secret);
    }
    auto reading = read_identity(with, v.identity_bytes(), options->bounds.max_identity,
                                 side::connecting, keys);
    identity peer = co_await reading;
    const auto fault = check_peer(*options, peer);
    const auto mac = keys->mac(side::accepting, self);
    auto telling =
        send_verdict(with, fault ? handshake_status::build_differs : handshake_status::good, none,
                     std::move(self), mac);
    co_await telling;
    if (fault) throw *fault;
    co_return peer;
}

} // namespace detail

SKEIN_INLINE task<identity> handshake(stream& with, side mine, const connection_options& options,
                                      byte_span first) {
    SKEIN_CHECK(first.size() <= hello_bytes, "more of the stream was read than the first message");
    const bool connecting = mine == side::connecting;
    const side theirs = connecting ? side::accepting : side::connecting;
    detail::hello out, in;
    out.fill(mine, protocol_version, loop::current().random());
    byte_buffer self = wire::encode(options.self);

    if (connecting) {
        auto sending = detail::write_one(&with, out.raw);
        co_await sending;
    }
    std::copy(first.begin(), first.end(), in.raw.begin());
    for (std::size_t have = first.size();;) { // judged as it comes
        auto fault = detail::check_hello(byte_span(in.raw).first(have), theirs);
        if (fault && fault->code() == errc::mismatch && !connecting) {
            auto telling = detail::write_one(&with, out.raw); // so that the peer can say it too
            co_await telling;
        }
        if (fault) throw *fault;
        if (have == hello_bytes) break;
        auto reading = with.read_some(mut_byte_span(in.raw).subspan(have));
        const std::size_t got = co_await reading;
        if (got == 0) {
            throw error(errc::reset, "the peer closed the connection during the handshake")
                .with_hint("its log says why; another program may be at the other end");
        }
        have += got;
    }
    const detail::handshake_keys keys(options.secret, connecting ? out : in, connecting ? in : out);
    auto rest = connecting
                    ? detail::finish_connecting(&with, &options, &keys, std::move(self))
                    : detail::finish_accepting(&with, &options, &keys, std::move(self), out.raw);
    auto peer = co_await rest;
    co_return peer;
}

SKEIN_INLINE task<identity> authenticate(stream& with, side mine, connection_options options,
                                         byte_buffer first) {
    std::optional<error> failure;
    try {
        auto shaking =
            with_timeout(handshake(with, mine, options, first), options.bounds.handshake_deadline);
        auto peer = co_await shaking;
        co_return peer;
    } catch (const error& e) {
        failure = e;
    }
    // Bytes already sent (a verdict) must arrive: say that no more follow, then close.
    with.close_send();
    with.close();
    error e(failure->code(), "handshake with " + with.peer_name() + " failed: " + failure->text());
    if (!failure->cause().empty()) e.with_cause(failure->cause());
    if (!failure->hint().empty()) e.with_hint(failure->hint());
    throw e;
}

SKEIN_INLINE task<authenticated_stream> dial(network& via, address to, connection_options options) {
    authenticated_stream made;
    auto connecting = via.connect(std::move(to));
    made.stream = co_await connecting;
    auto greeting = authenticate(*made.stream, side::connecting, std::move(options));
    made.peer = co_await greeting;
    co_return made;
}

} // namespace skein::net


// ======== skein/net/detail/connection_life.ipp, continued
#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

SKEIN_INLINE connection::~connection() = default;

// --- making one -------------------------------------------------------------------------------

SKEIN_INLINE task<connection::handle> connection::connect(network& via, address to,
                                                          connection_options options) {
    auto dialing = dial(via, std::move(to), options);
    auto made = co_await dialing;
    co_return over(std::move(made.stream), std::move(options), std::move(made.peer));
}

SKEIN_INLINE task<connection::handle> connection::accept(std::unique_ptr<stream> from,
                                                         connection_options options,
                                                         byte_buffer first) {
    auto greeting = authenticate(*from, side::accepting, options, std::move(first));
    identity peer = co_await greeting;
    co_return over(std::move(from), std::move(options), std::move(peer));
}

SKEIN_INLINE connection::connection(std::unique_ptr<stream> over, connection_options options,
                                    identity peer)
    : loop_(loop::current()), stream_(std::move(over)), options_(std::move(options)),
      peer_(std::move(peer)), peer_name_(to_string(peer_) + " over " + stream_->peer_name()),
      peer_host_(stream_->peer_host()), local_(stream_->is_local()), in_(detail::read_buffer_bytes),
      last_heard_(loop_.now()), last_taken_(loop_.now()) {
    const auto& alive = options_.alive;
    const bool on = alive.mode == keep_alive_mode::on ||
                    (alive.mode == keep_alive_mode::automatic && !stream_->is_local());
    if (on) {
        timer_due_ = deadline_after(last_heard_, alive.ping_after);
        loop_.set_timer(timer_, timer_due_);
    }
}

SKEIN_INLINE connection::handle connection::over(std::unique_ptr<stream> authenticated,
                                                 connection_options options, identity peer) {
    std::shared_ptr<connection> core(
        new connection(std::move(authenticated), std::move(options), std::move(peer)));
    core->self_ = core;
    core->parts_ = 2;
    core->tasks_.spawn(read_loop(core));
    core->tasks_.spawn(write_loop(core));
    // What users hold: when the last of them lets go, the connection ends.
    return handle(core.get(), [core](connection* c) {
        c->closed_handler_ = nullptr;
        c->end(error(errc::closed, "the connection was dropped without close()"));
    });
}

// --- life and end -----------------------------------------------------------------------------

SKEIN_INLINE void connection::begin_goodbye() noexcept {
    if (state_ != state::open) return;
    state_ = state::closing;
    send_control(goodbye);
    sent_goodbye_ = true;
    drained_.wake_all();
}

/// Both sides have said goodbye and all our bytes are out: the orderly end.
SKEIN_INLINE void connection::maybe_finished() noexcept {
    if (got_goodbye_ && sent_goodbye_ && is_drained()) end(std::nullopt);
}

SKEIN_INLINE void connection::end(std::optional<error> why) noexcept {
    if (state_ == state::ended) return;
    const auto keep = self_;
    state_ = state::ended;
    if (why) failure_ = std::move(*why);
    timer_.cancel();
    idle_.cancel();
    hook_.unlink();
    if (stream_) {
        if (!failure_) stream_->close_send();
        stream_->close();
    }
    out_.clear();
    wake_writer_.set();
    resumed_.set();
    drained_.wake_all();
    receivers_.wake_all();
    ended_.set();
    if (auto told = std::move(closed_handler_)) {
        closed_handler_ = nullptr;
        try {
            told(failure_ ? &*failure_ : nullptr);
        } catch (const std::exception& e) {
            logging::error("net", "closed handler failed", {{"what", e.what()}});
        }
    }
}

SKEIN_INLINE void connection::set_closed_handler(unique_function<void(const error*)> handler) {
    if (state_ == state::ended) {
        if (handler) handler(failure_ ? &*failure_ : nullptr);
        return;
    }
    closed_handler_ = std::move(handler);
}

/// The last loop to end lets the stream go at once (the world may end before the next turn), and the
/// connection itself when the scope has seen the end of its child.
SKEIN_INLINE void connection::part_ended() noexcept {
    if (--parts_ > 0) return;
    stream_.reset();
    loop_.post([last = std::move(self_)] { last->handler_ = nullptr; });
}

SKEIN_INLINE task<void> connection::wait_closed() {
    const auto keep = self_;
    auto ended = ended_.wait();
    co_await ended;
}

SKEIN_INLINE task<void> connection::close() {
    const auto keep = self_;
    begin_goodbye();
    if (is_held()) { // what the peer still sends is not wanted, its goodbye is
        handler_ = [](const frame_view&) {};
        unhold(paused_);
        unhold(full_);
    }
    try {
        auto ending = with_timeout(wait_closed(), options_.bounds.close_deadline);
        co_await ending;
    } catch (const error& e) {
        if (e.code() == errc::cancelled) {
            end(error(errc::cancelled,
                      "close of the connection to " + peer_name_ + " was cancelled"));
        } else {
            logging::debug("net", "no goodbye in time", {{"peer", peer_name_}});
            end(std::nullopt);
        }
    }
    try {
        auto joining = shield(tasks_.join());
        co_await joining;
    } catch (const std::exception&) { // the loops report through end()
    }
}

/// Whether the peer is given up: too long silent, or, while we do not listen, too long without taking a
/// byte of what waits for it.
SKEIN_INLINE std::optional<error> connection::judge(time_point now) {
    const auto& alive = options_.alive;
    // If this process itself was stopped or busy, the peer's words may wait in our buffers.
    const bool late = now - timer_due_ > alive.ping_after;
    if (is_held() || late) last_heard_ = now;
    if (late || is_drained() || written_total_ != std::exchange(written_at_tick_, written_total_))
        last_taken_ = now;
    const duration silence = now - last_heard_;
    if (silence >= alive.dead_after) {
        return error(errc::peer_lost,
                     fmt::format("{} is silent for {:.2f} s", peer_name_, to_seconds(silence)))
            .with_hint("its host is down, cut off, or its process is stopped");
    }
    if (is_held() && now - last_taken_ >= alive.stalled_after) {
        return error(errc::peer_lost,
                     fmt::format("{} has taken none of {} bytes for {:.2f} s", peer_name_,
                                 queued_bytes(), to_seconds(now - last_taken_)))
            .with_hint("its host is down, its process is stopped, or it has ceased to read");
    }
    suspect_ = silence >= alive.suspect_after;
    return std::nullopt;
}

SKEIN_INLINE void connection::on_timer() {
    const auto keep = self_;
    const auto& alive = options_.alive;
    const auto now = loop_.now();
    if (auto why = judge(now)) {
        end(std::move(*why));
        return;
    }
    // A side that said nothing for a period gives a sign of life: its peer may be busy sending, and a
    // ping would wait behind all of that.
    const bool mute = queued_total_ == queued_at_tick_ && is_drained();
    if (now - last_heard_ >= alive.ping_after && !is_held()) {
        send_control(ping);
    } else if (mute) {
        send_control(pong);
    }
    queued_at_tick_ = queued_total_;
    timer_due_ = deadline_after(now, alive.ping_after);
    loop_.set_timer(timer_, timer_due_);
}

} // namespace skein::net


// ======== skein/cluster/detail/group_protocol.hpp, continued
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace skein::cluster::detail {

/// Kinds of frames; client to server unless said.
namespace kind {
inline constexpr std::uint16_t join = 0x0101;       ///< join_body
inline constexpr std::uint16_t contribute = 0x0102; ///< blob_body
inline constexpr std::uint16_t leave = 0x0103;      ///< empty
inline constexpr std::uint16_t failed = 0x0104;     ///< loss_body
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

} // namespace skein::cluster::detail

// ======== skein/core/awaitable.hpp
// What all, any, race and as_completed accept: tasks, and whatever an overload of as_task turns into
// one (a remote ref has such an overload beside it).


#include <exception>
#include <type_traits>
#include <utility>

namespace skein {

/// A task is already one.
template <class T>
[[nodiscard]] task<T> as_task(task<T> work) noexcept {
    return work;
}

/// Anything that as_task turns into a task.
template <class A>
concept task_like = requires(A&& a) { as_task(std::forward<A>(a)); };

/// What awaiting an A gives.
template <task_like A>
using awaited_t = typename decltype(as_task(std::declval<A>()))::value_type;

/// Runs work and gives its outcome as a value: never throws, but for cancellation of the awaiting task
/// it gives errc::cancelled like any other error.
template <class T>
[[nodiscard]] task<result<T>> as_result(task<T> work) {
    try {
        if constexpr (std::is_void_v<T>) {
            co_await work;
            co_return result<void>{};
        } else {
            co_return result<T>(co_await work);
        }
    } catch (...) {
        co_return to_error(std::current_exception());
    }
}

} // namespace skein

// ======== skein/net/acceptor.hpp
// The accept loop of everything that listens, hardened against strangers.
//
//     net::acceptor door(network, net::address::tcp("127.0.0.1", 0));
//     auto serving = door.serve([](std::unique_ptr<net::stream> s, net::admission* place) {
//         return talk(std::move(s), place);        // once the peer is known: place->authenticated()
//     });
//
// A stream takes a place until its handler says that the peer has proven who it is. Places are bounded, in
// all and per remote address; when none is free, the oldest unauthenticated stream goes, so that idle
// strangers cost nothing. On Unix sockets another user's streams are dropped at once. A handler may look
// at the first bytes before it decides which protocol it speaks.


#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace skein::net {

class acceptor;

namespace detail {
/// Who shares places: an IPv4 address, a /64 of IPv6 (one customer has all of it), or the text itself.
[[nodiscard]] std::string share_of(const std::string& host);
} // namespace detail

/// Bounds of an acceptor.
struct acceptor_options {
    std::size_t places = 64;             ///< streams that are not authenticated yet
    std::size_t places_per_address = 32; ///< of them, from one remote address (one /64 of IPv6)
    bool same_user_only = true;          ///< Unix sockets: drop streams of other users
    /// Until authenticated(); then the handler is cancelled. Nothing: the handler has its own limit.
    std::optional<duration> deadline = time_constants::lan().handshake_timeout;
    /// No stream is dropped for the sake of another one before it has had this long.
    duration grace = time_constants::lan().accept_grace;
};

/// One stream's place among those that are not authenticated. Lives as long as its handler runs.
class admission : public list_node<admission> {
public:
    /// The peer has proven who it is: its place goes to the next one, nobody drops it any more.
    void authenticated() noexcept;
    [[nodiscard]] bool is_authenticated() const noexcept { return authenticated_; }

    admission(const admission&) = delete;
    admission& operator=(const admission&) = delete;
    ~admission();

private:
    friend class acceptor;
    admission(acceptor& door, std::string from);
    void drop(const char* why) noexcept;

    struct limit : timer_node {
        explicit limit(admission& a) noexcept;
        admission& place;
    };
    acceptor* door_;
    std::string from_;
    time_point since_;
    limit limit_{*this};
    cancel_source stop_;
    const char* dropped_ = nullptr; // why
    bool authenticated_ = false;
};

/// Listens and accepts until it is closed or cancelled.
class acceptor {
public:
    using handler = unique_function<task<void>(std::unique_ptr<stream>, admission*)>;

    /// Binds at once.
    ///   errors  those of network::listen
    acceptor(network& via, const address& at, acceptor_options options = {});
    /// On a listener that is there already.
    explicit acceptor(std::unique_ptr<listener> on, acceptor_options options = {});
    acceptor(const acceptor&) = delete;
    acceptor& operator=(const acceptor&) = delete;
    ~acceptor();

    [[nodiscard]] address local() const { return listener_->local(); }

    /// Accepts until close(). Every stream gets a task of `serve_one` in the scope of this call; an error of
    /// one is logged and ends that one only. A failed accept (no descriptors, no memory, a firewall's no)
    /// is logged and tried again after a pause. Returns when all tasks have ended.
    ///   errors  cancelled (then the tasks are cancelled too); what a listener cannot get over
    ///           (invalid_argument, not_supported)
    [[nodiscard]] task<void> serve(handler serve_one);

    /// Stops accepting; streams that are served go on.
    void close() noexcept { listener_->close(); }

    /// Streams that ended before they were authenticated, and those that were.
    [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }
    [[nodiscard]] std::uint64_t authenticated() const noexcept { return authenticated_; }
    /// Places that are taken.
    [[nodiscard]] std::size_t waiting() const noexcept { return waiting_; }

private:
    friend class admission;
    struct refusals;

    static task<void> accept_loop(scope& children, acceptor* self);
    static task<void> one(acceptor* self, std::unique_ptr<stream> from,
                          std::unique_ptr<admission> place);
    [[nodiscard]] bool is_foreign(stream& from);
    [[nodiscard]] duration after_failure(const error& fault);
    task<void> make_room(std::string from);
    admission* oldest(const std::string* from) noexcept;
    [[nodiscard]] std::size_t count(const std::string& from) noexcept;
    void leave(admission& a) noexcept;

    acceptor_options options_;
    std::unique_ptr<listener> listener_;
    handler handler_;
    intrusive_list<admission, admission> places_; // the oldest first
    std::size_t waiting_ = 0;
    wait_queue freed_;
    std::uint64_t refused_ = 0, authenticated_ = 0;
    std::unique_ptr<refusals> log_;
};

} // namespace skein::net


// ======== skein/net/detail/acceptor.ipp
// Places, who has to leave them, and the loop that fills them.


#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/core.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

namespace skein::net {
namespace detail {

SKEIN_INLINE std::string share_of(const std::string& host) {
    std::array<unsigned char, 16> raw{};
    if (::inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), raw.data()) != 1) return host;
    constexpr std::array<unsigned char, 12> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (std::equal(mapped.begin(), mapped.end(), raw.begin())) {
        return fmt::format("{}.{}.{}.{}", raw[12], raw[13], raw[14], raw[15]);
    }
    return std::string(raw.begin(), raw.begin() + 8);
}

SKEIN_INLINE task<void> wait_in(wait_queue* line) {
    auto turn = line->wait();
    co_await turn;
}

} // namespace detail

// --- one place --------------------------------------------------------------------------------

SKEIN_INLINE admission::limit::limit(admission& a) noexcept
    : timer_node([](timer_node& t) {
          static_cast<limit&>(t).place.drop("it did not prove who it is in time");
      }),
      place(a) {}

SKEIN_INLINE admission::admission(acceptor& door, std::string from)
    : door_(&door), from_(std::move(from)), since_(loop::current().now()) {
    door.places_.push_back(*this);
    ++door.waiting_;
    if (const auto within = door.options_.deadline)
        loop::current().set_timer(limit_, deadline_after(since_, *within));
}
SKEIN_INLINE admission::~admission() { door_->leave(*this); }

SKEIN_INLINE void admission::authenticated() noexcept {
    if (authenticated_ || dropped_ != nullptr) return;
    authenticated_ = true;
    ++door_->authenticated_;
    door_->leave(*this);
}

/// Ends the handler; the place is free at once.
SKEIN_INLINE void admission::drop(const char* why) noexcept {
    dropped_ = why;
    door_->leave(*this);
    stop_.request();
}

// --- the acceptor -----------------------------------------------------------------------------

/// One line per kind of trouble and time, with the number of those that got none.
struct acceptor::refusals {
    struct kind {
        time_point told{};
        std::uint64_t more = 0;
    };
    std::map<std::pair<std::string_view, errc>, kind> kinds;

    void tell(std::string_view what, const std::string& peer, const error& why) {
        const auto now = loop::current().now();
        const auto [at, fresh] = kinds.try_emplace({what, why.code()});
        auto& k = at->second;
        if (!fresh && now - k.told < time_constants::lan().refusal_line) {
            ++k.more;
            return;
        }
        k.told = now;
        if (k.more == 0) {
            logging::warn("net", what, {{"peer", peer}, {"why", why.what()}});
        } else {
            logging::warn("net", what,
                          {{"peer", peer}, {"why", why.what()}, {"more_since", k.more}});
        }
        k.more = 0;
    }
    void tell_rest() {
        for (auto& [key, k] : kinds) {
            if (k.more == 0) continue;
            logging::warn(
                "net", key.first,
                {{"more_since", std::exchange(k.more, 0)}, {"kind", to_string(key.second)}});
        }
    }
};

SKEIN_INLINE acceptor::acceptor(network& via, const address& at, acceptor_options options)
    : acceptor(via.listen(at), options) {}
SKEIN_INLINE acceptor::acceptor(std::unique_ptr<listener> on, acceptor_options options)
    : options_(options), listener_(std::move(on)), log_(std::make_unique<refusals>()) {}
SKEIN_INLINE acceptor::~acceptor() = default;

SKEIN_INLINE task<void> acceptor::serve(handler serve_one) {
    handler_ = std::move(serve_one);
    return with_scope(&acceptor::accept_loop, this);
}

SKEIN_INLINE void acceptor::leave(admission& a) noexcept {
    if (!a.is_linked()) return;
    a.unlink();
    a.limit_.cancel();
    --waiting_;
    freed_.wake_one();
}

SKEIN_INLINE std::size_t acceptor::count(const std::string& from) noexcept {
    std::size_t n = 0;
    places_.for_each([&](admission& a) { n += a.from_ == from ? 1 : 0; });
    return n;
}

/// The oldest one, of one address if given.
SKEIN_INLINE admission* acceptor::oldest(const std::string* from) noexcept {
    admission* found = nullptr;
    places_.for_each_while([&](admission& a) {
        if (from != nullptr && a.from_ != *from) return true;
        found = &a;
        return false;
    });
    return found;
}

/// Waits until there is a place for a stream from there; who has had its time has to go.
SKEIN_INLINE task<void> acceptor::make_room(std::string from) {
    for (;;) {
        const bool share_used = !from.empty() && count(from) >= options_.places_per_address;
        if (!share_used && waiting_ < options_.places) co_return;
        admission* const first = oldest(share_used ? &from : nullptr);
        if (first == nullptr) co_return; // no places at all: the first one gets in all the same
        const auto until = deadline_after(first->since_, options_.grace);
        if (loop::current().now() >= until) {
            first->drop("another stream needed its place");
            continue;
        }
        try {
            auto freed = with_deadline(detail::wait_in(&freed_), until);
            co_await freed;
        } catch (const error& e) {
            if (e.code() != errc::timeout) throw;
        }
    }
}

/// True when a stranger from another user was turned away.
SKEIN_INLINE bool acceptor::is_foreign(stream& from) {
    if (!options_.same_user_only) return false;
    const auto user = from.peer_user();
    if (!user || *user == ::geteuid()) return false;
    ++refused_;
    log_->tell(
        "connection refused", from.peer_name(),
        error(errc::permission_denied,
              fmt::format("it is a process of user {}, this one is of {}", *user, ::geteuid())));
    return true;
}

/// After a failed accept: throws what cannot be got over, says how long to wait for the rest.
SKEIN_INLINE duration acceptor::after_failure(const error& fault) {
    if (fault.code() == errc::invalid_argument || fault.code() == errc::not_supported) throw fault;
    // Out of descriptors or memory, a network that is down, a firewall's no, or a stream that broke
    // before it was taken: go on later.
    log_->tell("accept failed", to_string(local()), fault);
    if (fault.code() == errc::exhausted) {
        admission* const first = oldest(nullptr);
        if (first != nullptr && loop::current().now() - first->since_ >= options_.grace) {
            first->drop("its descriptor was needed");
            return options_.grace;
        }
    }
    return time_constants::lan().accept_pause;
}

SKEIN_INLINE task<void> acceptor::accept_loop(scope& children, acceptor* self) {
    auto* cancel = co_await skein::detail::current_cancel{};
    for (;;) {
        std::unique_ptr<stream> next;
        std::optional<error> fault;
        try {
            auto accepting = self->listener_->accept();
            next = co_await accepting;
        } catch (const error& e) {
            fault = e;
        }
        if (fault) {
            if (fault->code() == errc::closed) break;
            if (fault->code() == errc::cancelled && cancel != nullptr && cancel->requested()) {
                self->log_->tell_rest();
                throw *fault;
            }
            auto pause = sleep_for(self->after_failure(*fault));
            co_await pause;
            continue;
        }
        if (self->is_foreign(*next)) continue;
        std::string from = detail::share_of(next->peer_host());
        auto room = self->make_room(from);
        co_await room;
        std::unique_ptr<admission> place(new admission(*self, std::move(from)));
        children.spawn(one(self, std::move(next), std::move(place)));
    }
    self->log_->tell_rest();
}

SKEIN_INLINE task<void> acceptor::one(acceptor* self, std::unique_ptr<stream> from,
                                      std::unique_ptr<admission> place) {
    auto* cancel = co_await skein::detail::current_cancel{};
    const std::string peer = from->peer_name();
    std::optional<error> fault;
    try {
        auto serving =
            with_cancel(place->stop_.token(), self->handler_(std::move(from), place.get()));
        co_await serving;
    } catch (...) {
        fault = to_error(std::current_exception());
    }
    const bool known = place->is_authenticated();
    const char* const dropped = place->dropped_;
    place.reset();
    if (fault && fault->code() == errc::cancelled && cancel != nullptr && cancel->requested())
        throw *fault;
    if (known) {
        if (fault)
            logging::warn("net", "connection failed", {{"peer", peer}, {"why", fault->what()}});
        co_return;
    }
    ++self->refused_;
    if (dropped != nullptr) fault = error(errc::exhausted, dropped);
    if (fault) self->log_->tell("connection refused", peer, *fault);
}

} // namespace skein::net


// ======== skein/cluster/detail/group.ipp, continued
#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace skein::cluster {
namespace detail {

SKEIN_INLINE net::connection_options link_options(const group_options& options, std::string name) {
    net::connection_options o;
    o.secret = options.secret;
    o.self.name = std::move(name);
    o.self.purpose = "group";
    o.alive = options.alive;
    o.bounds.max_frame = options.max_blob * static_cast<std::size_t>(options.world_size) + 65536;
    return o;
}

/// Where other hosts can reach, everybody could be a rank of a world without a secret.
SKEIN_INLINE void require_secret(const net::address& at, const net::token& secret) {
    if (!secret.empty() || at.is_loopback()) return;
    throw error(errc::permission_denied,
                fmt::format("a group at {} without a token", net::to_string(at)))
        .with_hint("64 zeros are no secret: give all ranks the same random SKEIN_TOKEN");
}

} // namespace detail

struct group_server::member {
    member_info info;
    std::shared_ptr<net::connection> link;
    bool left = false;
};

SKEIN_INLINE group_server::group_server(net::network& via, net::address at, group_options options)
    : options_(std::move(options)), members_(static_cast<std::size_t>(options_.world_size)) {
    detail::require_secret(at, options_.secret);
    net::acceptor_options bounds;
    bounds.places = std::max(bounds.places, members_.size());
    bounds.places_per_address = std::max(bounds.places_per_address, members_.size());
    door_ = std::make_unique<net::acceptor>(via, at, bounds);
}

SKEIN_INLINE group_server::~group_server() = default;

SKEIN_INLINE net::address group_server::local() const { return door_->local(); }

SKEIN_INLINE std::vector<int> group_server::missing() const {
    std::vector<int> ranks;
    for (std::size_t r = 0; r < members_.size(); ++r) {
        if (!members_[r]) ranks.push_back(static_cast<int>(r));
    }
    return ranks;
}

SKEIN_INLINE bool group_server::has_left(int rank) const {
    const auto& m = members_[static_cast<std::size_t>(rank)];
    return m && m->left;
}

SKEIN_INLINE task<group_outcome> group_server::run() {
    children_.spawn(accept_all());
    children_.spawn(watch_deadline());
    std::exception_ptr stopped;
    try {
        auto ended = ended_.wait();
        co_await ended;
    } catch (...) {
        stopped = std::current_exception(); // the caller is cancelled: clean up all the same
    }
    door_->close();
    // Readers end by themselves when their connection is closed here, after the last word is flushed.
    for (auto& m : members_) {
        if (!m || !m->link) continue;
        auto closed = shield(m->link->close());
        co_await closed;
    }
    children_.cancel();
    auto joined = shield(children_.join());
    co_await joined;
    if (stopped) std::rethrow_exception(stopped);
    co_return *outcome_;
}

SKEIN_INLINE void group_server::abort(error why, int culprit) {
    group_outcome how;
    how.failure = std::move(why);
    how.culprit = culprit;
    end(std::move(how));
}

SKEIN_INLINE task<void> group_server::accept_all() {
    std::optional<error> why;
    try {
        auto serving =
            door_->serve([this](std::unique_ptr<net::stream> from, net::admission* place) {
                return serve(std::move(from), place);
            });
        co_await serving;
    } catch (const error& e) {
        why = e;
    }
    if (why && why->code() != errc::cancelled) abort(*why);
}

SKEIN_INLINE task<void> group_server::watch_deadline() {
    constexpr duration patience = time_constants::lan().still_waiting;
    auto left = options_.join_deadline;
    if (left > patience) { // a person would ask what it waits for
        co_await sleep_for(patience);
        if (running_ || outcome_) co_return;
        logging::warn("cluster", fmt::format("still waiting for rank {} of {} to join",
                                             fmt::join(missing(), ", "), options_.world_size));
        left -= patience;
    }
    co_await sleep_for(left);
    if (running_ || outcome_) co_return;
    abort(error(errc::timeout, fmt::format("rank {} of {} did not join within {:.3g} s",
                                           fmt::join(missing(), ", "), options_.world_size,
                                           to_seconds(options_.join_deadline)))
              .with_hint("did all processes start, and can they reach this host?"),
          missing().front());
}

/// One stream: who proves the token and is one of ours gets in. What a stranger fails at, the acceptor
/// says.
SKEIN_INLINE task<void> group_server::serve(std::unique_ptr<net::stream> from,
                                            net::admission* place) {
    auto shaken = net::connection::accept(std::move(from), detail::link_options(options_, "group"));
    auto link = co_await shaken;
    place->authenticated();
    auto first_frame = with_timeout(link->receive(), time_constants::lan().handshake_timeout);
    auto first = co_await first_frame;
    if (!first) co_return;
    auto admitted = admit(link, *first);
    if (!admitted) {
        detail::send(*link, detail::kind::refused, detail::loss_body(-1, admitted.error()));
        auto closed = shield(link->close()); // it has to read why
        co_await closed;
        co_return;
    }
    auto served = serve_member(std::move(link), *admitted);
    co_await served;
}

SKEIN_INLINE task<void> group_server::serve_member(std::shared_ptr<net::connection> link,
                                                   member* self) {
    std::optional<error> why;
    try {
        start_if_complete();
        for (;;) {
            auto next = link->receive();
            auto f = co_await next;
            if (!f) break;
            handle(*self, *f);
        }
    } catch (const error& e) {
        why = e;
    }
    if (self->left || outcome_) co_return;
    group_outcome how;
    how.culprit = self->info.rank;
    how.failure =
        error(errc::peer_lost, fmt::format("rank {} (pid {} at {}) is gone", self->info.rank,
                                           self->info.pid, self->info.host))
            .with_cause(why ? why->text() : "it closed its connection without leaving");
    end(std::move(how));
}

SKEIN_INLINE result<group_server::member*> group_server::admit(
    std::shared_ptr<net::connection> link, const net::frame& first) {
    if (first.kind != detail::kind::join) {
        return error(errc::malformed,
                     fmt::format("a group expects join first, got kind {}", first.kind));
    }
    auto body = wire::decode<detail::join_body>(first.body);
    if (!body) return body.error();
    if (auto why = objection(body->self, body->settings)) return *why;
    auto& place = members_[static_cast<std::size_t>(body->self.rank)];
    place = std::make_unique<member>();
    place->info = std::move(body->self);
    place->link = std::move(link);
    return place.get();
}

/// Why this rank cannot be one of ours; nothing if it can.
SKEIN_INLINE std::optional<error> group_server::objection(const member_info& to,
                                                          const std::vector<setting>& settings) {
    if (to.world_size != options_.world_size) {
        return error(errc::mismatch,
                     fmt::format("rank {} thinks of a world of {}, this group is of {}", to.rank,
                                 to.world_size, options_.world_size))
            .with_hint("two jobs share one address, or were started with different sizes");
    }
    if (to.rank < 0 || to.rank >= options_.world_size) {
        return error(errc::mismatch,
                     fmt::format("rank {} in a world of {}", to.rank, options_.world_size));
    }
    if (to.job != options_.job) {
        return error(errc::mismatch,
                     fmt::format("rank {} is of job '{}', this group is of job '{}'", to.rank,
                                 to.job, options_.job))
            .with_hint("two jobs share one address and one token");
    }
    if (to.attempt != options_.generation) {
        return error(errc::mismatch,
                     fmt::format("rank {} is of attempt {}, this group is of attempt {}", to.rank,
                                 to.attempt, options_.generation))
            .with_hint("a process of an attempt that has failed is still alive");
    }
    const auto& place = members_[static_cast<std::size_t>(to.rank)];
    if (place) {
        return error(errc::already_exists, fmt::format("rank {} is taken by pid {} at {}", to.rank,
                                                       place->info.pid, place->info.host))
            .with_hint("is an earlier run of the job still alive?");
    }
    if (outcome_) return outcome_->failure;
    if (options_.settings.empty()) {
        options_.settings = settings;
        settings_of_ = to.rank;
    }
    if (to.settings == hash_of(options_.settings)) return std::nullopt;
    auto differs = difference(to.rank, settings, settings_of_, options_.settings);
    // It is a rank of this very job: there is no other to wait for.
    if (differs) abort(*differs, to.rank);
    return differs;
}

SKEIN_INLINE void group_server::start_if_complete() {
    if (running_ || outcome_ || !missing().empty()) return;
    running_ = true;
    detail::formed_body body;
    body.generation = options_.generation;
    for (auto& m : members_) body.members.push_back(m->info);
    // A link that has just broken is its own member's fault; its serve() says so.
    for (auto& m : members_) {
        if (m->link->is_open()) detail::send(*m->link, detail::kind::formed, body);
    }
}

SKEIN_INLINE void group_server::handle(member& from, const net::frame& f) {
    if (f.kind == detail::kind::leave) {
        from.left = true;
        const bool all = std::all_of(members_.begin(), members_.end(),
                                     [](const auto& m) { return m && m->left; });
        if (all) end({});
        return;
    }
    if (f.kind == detail::kind::failed) {
        auto body = wire::decode<detail::loss_body>(f.body);
        group_outcome how;
        how.culprit = from.info.rank;
        how.reported = true;
        how.failure = body ? std::get<error>(*body) : body.error();
        from.left = true;
        end(std::move(how));
        return;
    }
    if (f.kind != detail::kind::contribute) {
        throw error(errc::malformed, fmt::format("kind {} means nothing to a group", f.kind));
    }
    auto body = wire::decode<detail::blob_body>(f.body);
    if (!body) throw body.error();
    if (body->blob.size() > options_.max_blob) {
        throw error(errc::too_large,
                    fmt::format("rank {} gives {} bytes for '{}', the limit is {}", from.info.rank,
                                body->blob.size(), body->key, options_.max_blob));
    }
    auto& blobs = exchanges_[body->key];
    blobs.resize(members_.size());
    auto& mine = blobs[static_cast<std::size_t>(from.info.rank)];
    if (mine) throw error(errc::mismatch, fmt::format("'{}' was exchanged twice", body->key));
    mine = std::move(body->blob);
    if (!std::all_of(blobs.begin(), blobs.end(), [](const auto& b) { return b.has_value(); }))
        return;

    detail::gathered_body all;
    all.key = body->key;
    for (auto& b : blobs) all.blobs.push_back(std::move(*b));
    exchanges_.erase(body->key);
    for (auto& m : members_) {
        if (!m->left && m->link->is_open()) detail::send(*m->link, detail::kind::gathered, all);
    }
}

SKEIN_INLINE void group_server::end(group_outcome how) {
    if (outcome_) return;
    outcome_ = std::move(how);
    tell_everyone();
    ended_.set();
}

SKEIN_INLINE void group_server::tell_everyone() {
    if (!outcome_->failure) return;
    const detail::loss_body body(outcome_->culprit, *outcome_->failure);
    for (auto& m : members_) {
        if (m && m->link && !m->left && m->info.rank != outcome_->culprit && m->link->is_open()) {
            detail::send(*m->link, detail::kind::lost, body);
        }
    }
}

} // namespace skein::cluster

// ======== skein/cluster/detail/group_client.ipp
// One rank's end of the group protocol.


// ======== skein/net/dial.hpp
// The patient connecting side: again and again until somebody is there, with growing, spread pauses.
//
//     auto dialing = net::connect_patiently(network, to, options);
//     auto c = co_await dialing;                   // or dial_patiently: the authenticated stream itself


namespace skein::net {

/// How often and how long to try.
struct reconnect_policy {
    int max_tries = 8;                    ///< 0: as many as fit in before `until`
    time_point until = time_point::max(); ///< no try and no pause goes on after it
    duration first_delay = time_constants::lan().reconnect_first; ///< doubles
    duration most_delay = time_constants::lan().reconnect_most;
    double jitter = 0.5; ///< of the delay, drawn: many peers must not come at once
    duration connect_timeout = time_constants::lan().connect_timeout; ///< of one, without handshake
    bool (*worth_another)(errc) noexcept = &is_transient;

    /// The pause after the given failed try (from 1 on).
    [[nodiscard]] duration delay(int tries, random_source& random) const;

    /// Nobody there yet, or the way broke. A wrong token or build is not.
    [[nodiscard]] static bool is_transient(errc code) noexcept;
    /// All but a clear no (wrong token, other build or purpose) and cancellation: a name that is not
    /// known yet, a port that somebody else still holds.
    [[nodiscard]] static bool is_no_refusal(errc code) noexcept;
};

/// Connects and shakes hands (net::dial), again and again as the policy says. `via` and `random` must
/// outlive the task.
///   errors  the last one, with the number of tries and the time they took; at once what is not worth
///           another try
task<authenticated_stream> dial_patiently(network& via, address to, connection_options options,
                                          reconnect_policy policy, random_source& random);
/// The same with the randomness of the loop that runs it.
task<authenticated_stream> dial_patiently(network& via, address to, connection_options options,
                                          reconnect_policy policy = {});

/// dial_patiently, and a connection over the stream.
task<connection::handle> connect_patiently(network& via, address to, connection_options options,
                                           reconnect_policy policy, random_source& random);
task<connection::handle> connect_patiently(network& via, address to, connection_options options,
                                           reconnect_policy policy = {});

} // namespace skein::net


// ======== skein/net/detail/dial.ipp
// The one back-off loop.


#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

SKEIN_INLINE duration reconnect_policy::delay(int tries, random_source& random) const {
    duration d = first_delay;
    for (int i = 1; i < tries && d < most_delay; ++i) d *= 2;
    d = std::min(d, most_delay);
    const double part = 1.0 - jitter * random.unit();
    return duration(static_cast<std::int64_t>(static_cast<double>(d.count()) * part));
}

SKEIN_INLINE bool reconnect_policy::is_transient(errc code) noexcept {
    return code == errc::refused || code == errc::timeout || code == errc::reset ||
           code == errc::closed || code == errc::exhausted;
}

SKEIN_INLINE bool reconnect_policy::is_no_refusal(errc code) noexcept {
    return code != errc::cancelled && code != errc::permission_denied && code != errc::mismatch;
}

namespace detail {

/// One try: the way has the policy's limit, the handshake that of the options.
SKEIN_INLINE task<authenticated_stream> dial_once(network* via, const address* to,
                                                  const connection_options* options,
                                                  duration connect_timeout) {
    authenticated_stream made;
    auto connecting = with_timeout(via->connect(*to), connect_timeout);
    made.stream = co_await connecting;
    auto greeting = authenticate(*made.stream, side::connecting, *options);
    made.peer = co_await greeting;
    co_return made;
}

} // namespace detail

SKEIN_INLINE task<authenticated_stream> dial_patiently(network& via, address to,
                                                       connection_options options,
                                                       reconnect_policy policy,
                                                       random_source& random) {
    const auto begin = loop::current().now();
    for (int tries = 1;; ++tries) {
        std::optional<error> fault;
        try {
            auto once = detail::dial_once(&via, &to, &options, policy.connect_timeout);
            auto trying = policy.until == time_point::max()
                              ? std::move(once)
                              : with_deadline(std::move(once), policy.until);
            auto made = co_await trying;
            co_return made;
        } catch (const error& e) {
            fault = e;
        }
        if (!policy.worth_another(fault->code())) throw *fault;
        const auto now = loop::current().now();
        const auto pause = policy.delay(tries, random);
        const bool no_more = policy.max_tries != 0 && tries >= policy.max_tries;
        if (no_more || deadline_after(now, pause) >= policy.until) {
            error e(fault->code(),
                    fmt::format("connect {} failed after {} {} ({:.1f} s)", to_string(to), tries,
                                tries == 1 ? "try" : "tries", to_seconds(now - begin)));
            e.with_cause(fault->what());
            throw e;
        }
        auto sleeping = sleep_for(pause);
        co_await sleeping;
    }
}

SKEIN_INLINE task<authenticated_stream> dial_patiently(network& via, address to,
                                                       connection_options options,
                                                       reconnect_policy policy) {
    auto dialing =
        dial_patiently(via, std::move(to), std::move(options), policy, loop::current().random());
    auto made = co_await dialing;
    co_return made;
}

SKEIN_INLINE task<connection::handle> connect_patiently(network& via, address to,
                                                        connection_options options,
                                                        reconnect_policy policy,
                                                        random_source& random) {
    auto dialing = dial_patiently(via, std::move(to), options, policy, random);
    auto made = co_await dialing;
    co_return connection::over(std::move(made.stream), std::move(options), std::move(made.peer));
}

SKEIN_INLINE task<connection::handle> connect_patiently(network& via, address to,
                                                        connection_options options,
                                                        reconnect_policy policy) {
    auto connecting =
        connect_patiently(via, std::move(to), std::move(options), policy, loop::current().random());
    auto made = co_await connecting;
    co_return made;
}

} // namespace skein::net


// ======== skein/cluster/detail/group_client.ipp, continued
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

/// Until somebody is there: rank 0 may be started later, its name may not be known yet.
SKEIN_INLINE task<std::shared_ptr<net::connection>> reach_group(net::network* via, net::address at,
                                                                int rank, group_options options) {
    net::reconnect_policy often;
    often.max_tries = 0;
    often.until = deadline_after(loop::current().now(), options.join_deadline);
    often.first_delay = time_constants::lan().join_first;
    often.most_delay = time_constants::lan().join_most;
    often.worth_another = &net::reconnect_policy::is_no_refusal;
    auto reaching = net::connect_patiently(
        *via, at, link_options(options, fmt::format("rank {}", rank)), often);
    std::optional<error> why;
    try {
        auto link = co_await reaching;
        co_return link;
    } catch (const error& e) {
        why = e;
    }
    if (!net::reconnect_policy::is_no_refusal(why->code())) throw *why;
    throw error(errc::timeout,
                fmt::format("rank {} could not reach its group at {} within {:.3g} s", rank,
                            net::to_string(at), to_seconds(options.join_deadline)))
        .with_cause(why->cause().empty() ? why->text() : why->cause())
        .with_hint("is rank 0 running, and can this host reach it?");
}

} // namespace detail

SKEIN_INLINE task<std::unique_ptr<group_client>> group_client::join(net::network& via,
                                                                    net::address at,
                                                                    member_info self,
                                                                    group_options options,
                                                                    lost_callback lost) {
    detail::require_secret(at, options.secret);
    self.job = options.job;
    self.attempt = options.generation;
    self.settings = hash_of(options.settings);
    std::unique_ptr<group_client> client(new group_client);
    client->self_ = self;
    client->on_lost_ = std::move(lost);
    auto reached = detail::reach_group(&via, std::move(at), self.rank, options);
    client->link_ = co_await reached;
    client->reader_.spawn(client->read_all());
    std::optional<error> failure;
    try {
        detail::send(*client->link_, detail::kind::join,
                     detail::join_body{self, std::move(options.settings)});
        while (!client->joined_ && !client->lost_) {
            auto changed = client->changed_.wait();
            co_await changed;
        }
        failure = client->lost_;
    } catch (const error& e) {
        failure = e;
    }
    if (!failure) co_return client;
    // One that gives up says so: the others must not wait for it.
    auto finished = failure->code() == errc::cancelled ? client->fail(*failure) : client->finish();
    auto ended = shield(std::move(finished));
    co_await ended;
    throw *failure;
}

SKEIN_INLINE group_client::~group_client() = default;

SKEIN_INLINE task<void> group_client::read_all() {
    try {
        for (;;) {
            auto next = link_->receive();
            auto f = co_await next;
            if (!f) break;
            handle(*f);
        }
        if (!leaving_) {
            lose(-1, error(errc::peer_lost, "the group's server closed the connection")
                         .with_hint("the supervisor or rank 0 has ended"));
        }
    } catch (const error& e) {
        if (!leaving_)
            lose(-1, error(errc::peer_lost, "the group's server is gone").with_cause(e.text()));
    }
    changed_.wake_all();
}

SKEIN_INLINE void group_client::handle(const net::frame& f) {
    switch (f.kind) {
    case detail::kind::formed: {
        auto body = wire::decode<detail::formed_body>(f.body);
        if (!body) throw body.error();
        members_ = std::move(body->members);
        generation_ = body->generation;
        joined_ = true;
        break;
    }
    case detail::kind::gathered: {
        auto body = wire::decode<detail::gathered_body>(f.body);
        if (!body) throw body.error();
        gathered_[body->key] = std::move(body->blobs);
        break;
    }
    case detail::kind::refused:
    case detail::kind::lost: {
        auto body = wire::decode<detail::loss_body>(f.body);
        if (!body) throw body.error();
        lose(std::get<0>(*body), std::get<1>(*body));
        break;
    }
    default: throw error(errc::malformed, fmt::format("kind {} means nothing to a rank", f.kind));
    }
    changed_.wake_all();
}

SKEIN_INLINE void group_client::lose(int rank, error why) {
    if (lost_) return;
    lost_ = std::move(why);
    if (joined_ && on_lost_) on_lost_(rank, *lost_);
    changed_.wake_all();
}

SKEIN_INLINE task<std::vector<byte_buffer>> group_client::exchange(std::string key,
                                                                   byte_buffer mine) {
    if (lost_) throw *lost_;
    detail::blob_body body;
    body.key = key;
    body.blob = std::move(mine);
    detail::send(*link_, detail::kind::contribute, body);
    for (;;) {
        if (auto found = gathered_.find(key); found != gathered_.end()) {
            auto blobs = std::move(found->second);
            gathered_.erase(found);
            co_return blobs;
        }
        if (lost_) throw *lost_;
        auto changed = changed_.wait();
        co_await changed;
    }
}

SKEIN_INLINE task<void> group_client::leave() {
    leaving_ = true;
    if (!lost_ && link_->is_open()) {
        net::frame f;
        f.kind = detail::kind::leave;
        link_->send(std::move(f));
    }
    auto finished = shield(finish());
    co_await finished;
}

SKEIN_INLINE task<void> group_client::fail(error why) {
    leaving_ = true;
    if (!lost_ && link_->is_open()) {
        detail::send(*link_, detail::kind::failed, detail::loss_body(self_.rank, why));
    }
    auto finished = shield(finish());
    co_await finished;
}

SKEIN_INLINE task<void> group_client::finish() {
    leaving_ = true;
    auto closed = link_->close();
    co_await closed;
    reader_.cancel();
    auto joined = reader_.join();
    co_await joined;
}

} // namespace skein::cluster

// ======== skein/cluster/joined_group.hpp
// One rank's place in its group, in the real world: the control thread with the group client, behind
// the rendezvous interface. In a world without a supervisor rank 0's control thread also serves the group.
//
// The control thread never computes, so a long kernel cannot miss a heartbeat.


#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace skein::cluster {

/// How long a rank waits for the others, and what it compares with them.
struct joined_group_options {
    duration join_deadline = time_constants::lan().rendezvous_timeout;
    /// How long exchange() waits for the slowest rank.
    duration exchange_deadline = 2 * time_constants::lan().rendezvous_timeout;
    std::vector<setting> settings; ///< what all ranks must have alike; see group_options
    /// While the ranks meet: when this becomes readable (stop_signals::fd()), joining is given up.
    int stop_fd = -1;
};

/// Joins in the constructor, which blocks until all ranks are there. leave() or fail() before the end;
/// the destructor without either looks to the others like a crash.
class joined_group final : public rendezvous {
public:
    ///   errors  those of group_client::join; cancelled: options.stop_fd; already_exists: rank 0's port
    ///           is in use
    joined_group(launch_environment where, net::token secret, joined_group_options options = {});
    ~joined_group() override;

    [[nodiscard]] int rank() const override;
    [[nodiscard]] int world_size() const override;
    [[nodiscard]] int local_rank() const override;
    [[nodiscard]] int local_size() const override;
    [[nodiscard]] int generation() const override;
    [[nodiscard]] std::string host() const override;
    [[nodiscard]] net::token secret() const override;
    [[nodiscard]] const std::vector<member_info>& members() const noexcept;

    std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) override;
    [[nodiscard]] subscription on_lost(loss_listeners::listener lost) override;

    /// Blocks until another rank is known to be lost or to have failed, at most so long; false if not.
    /// What went wrong elsewhere is often seen first as a broken collective here.
    [[nodiscard]] bool wait_lost(duration limit);

    /// This rank is done. Rank 0 of an unsupervised world returns when all ranks are.
    void leave();
    /// This rank fails; the others are told why.
    void fail(const error& why);

private:
    class impl;
    std::unique_ptr<impl> impl_;
};

} // namespace skein::cluster


// ======== skein/cluster/detail/joined_group.ipp
// The control thread of a joined_group and what lives on it.


// ======== skein/net/loop_thread.hpp
// A thread of its own with a real loop: where sockets live while another thread computes.
//
//     net::loop_thread io("comm");
//     int n = io.run([&] { return count_peers(network); });    // blocks this thread, not the loop
//     // the destructor stops the loop and joins
//
// Signals are blocked on the thread, so that they reach the program's main thread.


// ======== skein/net/real_loop.hpp
// The real world's loop: Asio's io_context behind skein::loop.
//
//     net::real_loop loop;
//     int code = loop.run(app(loop));
//
// One thread runs it (concurrency hint 1). Any Asio object made on context() can be used in its
// tasks with skein::use_task.


#include <memory>
#include <optional>

namespace skein::net {

namespace detail {
struct asio_context;
}

/// A loop over system time and sockets.
class real_loop final : public loop {
public:
    real_loop();

    /// Lets work that was aborted but not awaited (connections whose last owner let go) end: runs until
    /// nothing has happened for a while. Must not be called while the loop runs.
    ~real_loop() override;

    /// The asio::io_context; for callers that include net/use_task.hpp.
    [[nodiscard]] auto& context() noexcept;

    [[nodiscard]] time_point coarse_now() noexcept override;

protected:
    time_point read_clock() noexcept override;
    void poll(std::optional<time_point> until, bool may_block) override;
    void notify() noexcept override;

private:
    const std::unique_ptr<detail::asio_context> context_;
};

} // namespace skein::net


// ======== skein/net/detail/real_loop.ipp
// The real world's loop: time from the system's steady clock, events from Asio.


// ======== skein/net/detail/asio_context.hpp
// What a real_loop is made of; real_loop.hpp only names it, so that it needs no Asio.


// ======== skein/net/asio.hpp
// The door to Asio: the only header that includes it, with every shim for its versions.
//
// Standalone Asio >= 1.22. Includes the pieces that skein uses, not <asio.hpp>; further ones, <asio/write.hpp> and the
// like, go after this header.


#include <asio/version.hpp> // includes nothing, so the shims below still come first

// Asio before 1.26 does not see coroutines under clang (its test asks for the old TS macro).
#if defined(__clang__) && ASIO_VERSION < 102600
#if !defined(ASIO_HAS_CO_AWAIT)
#define ASIO_HAS_CO_AWAIT 1
#endif
#if !defined(ASIO_HAS_STD_COROUTINE)
#define ASIO_HAS_STD_COROUTINE 1
#endif
#endif

#if ASIO_VERSION < 102200
#error "skein needs Asio >= 1.22"
#endif

#include <asio/associated_cancellation_slot.hpp>
#include <asio/async_result.hpp>
#include <asio/buffer.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/error.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/ip/v6_only.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>


// ======== skein/net/detail/asio_context.hpp, continued
namespace skein::net::detail {

struct asio_context {
    asio::io_context io{1};
    asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
};

} // namespace skein::net::detail


// ======== skein/net/detail/real_loop.ipp, continued
#include <chrono>
#include <ctime>

namespace skein::net {
namespace detail {

SKEIN_INLINE time_point steady_now() noexcept {
    return time_point(
        std::chrono::duration_cast<duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

SKEIN_INLINE task<void> settle(asio::io_context* io) {
    for (int idle = 0, n = 0; idle < 16 && n < 10'000; ++n) {
        idle = io->poll() != 0 ? 0 : idle + 1;
        auto others = yield();
        co_await others;
    }
}

} // namespace detail

SKEIN_INLINE real_loop::real_loop()
    : loop(detail::steady_now()), context_(std::make_unique<detail::asio_context>()) {}

SKEIN_INLINE real_loop::~real_loop() {
    if (try_current() == nullptr) run(detail::settle(&context_->io));
}

SKEIN_INLINE time_point real_loop::coarse_now() noexcept {
    timespec t{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return time_point(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
}

SKEIN_INLINE time_point real_loop::read_clock() noexcept { return detail::steady_now(); }

SKEIN_INLINE void real_loop::poll(std::optional<time_point> until, bool may_block) {
    // One handler at a time: what it wakes runs before the next, and Asio asks the kernel only
    // when none is left.
    auto& io = context_->io;
    if (!may_block) {
        io.poll_one();
    } else if (!until) {
        io.run_one();
    } else {
        io.run_one_until(std::chrono::steady_clock::time_point(until->time_since_epoch()));
    }
}

SKEIN_INLINE void real_loop::notify() noexcept {
    asio::post(context_->io, [] {});
}

} // namespace skein::net


// ======== skein/net/loop_thread.hpp, continued
#include <concepts>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

namespace skein::net {

/// Stops and joins in the destructor; all tasks started through run() have ended by then.
class loop_thread {
public:
    explicit loop_thread(std::string name);
    loop_thread(const loop_thread&) = delete;
    loop_thread& operator=(const loop_thread&) = delete;
    ~loop_thread();

    /// Calls f() on the loop's thread; f returns task<T>, which is run to its end there.
    ///   result  T; an exception of f or of the task is rethrown here
    ///   thread  any except the loop's own; blocks the caller. f lives until the task has ended
    template <class F>
        requires std::invocable<F&>
    auto run(F f) {
        using T = typename std::invoke_result_t<F&>::value_type;
        SKEIN_CHECK(std::this_thread::get_id() != thread_.get_id(),
                    "loop_thread::run on its own thread");
        outcome<T> answer;
        loop_->post_from_any_thread(
            [this, &f, &answer] { tasks_->spawn(deliver<T>(&f, &answer)); });
        std::unique_lock lock(answer.mutex);
        answer.ended.wait(lock, [&] { return answer.done; });
        if (answer.failure) std::rethrow_exception(std::move(answer.failure));
        if constexpr (!std::is_void_v<T>) return T(std::move(*answer.value));
    }

    /// The loop; only post_from_any_thread may be called from other threads.
    [[nodiscard]] real_loop& loop() noexcept { return *loop_; }

private:
    /// Where the caller waits. An exception is moved through it: no thread keeps a share of it, so
    /// its last release never races with the reader.
    template <class T>
    struct outcome {
        std::mutex mutex; // guards all
        std::condition_variable ended;
        std::optional<std::conditional_t<std::is_void_v<T>, bool, T>> value;
        std::exception_ptr failure;
        bool done = false;
    };

    template <class T, class F>
    static task<void> deliver(F* f, outcome<T>* answer) {
        std::optional<std::conditional_t<std::is_void_v<T>, bool, T>> value;
        std::exception_ptr failure;
        try {
            auto work = (*f)();
            if constexpr (std::is_void_v<T>) {
                co_await work;
            } else {
                value.emplace(co_await work);
            }
        } catch (...) {
            failure = std::current_exception();
        }
        const std::lock_guard lock(answer->mutex);
        answer->value = std::move(value);
        answer->failure = std::move(failure);
        failure = nullptr;
        answer->done = true;
        answer->ended.notify_one();
    }

    void main(const std::string& name, std::promise<void>& ready);

    // Written by the thread before `ready`, then only read.
    real_loop* loop_ = nullptr;
    event* stop_ = nullptr;
    scope* tasks_ = nullptr;
    std::thread thread_;
};

} // namespace skein::net


// ======== skein/net/detail/loop_thread.ipp
// The thread behind a loop_thread.

#include <pthread.h>
#include <signal.h>

namespace skein::net {
namespace detail {

SKEIN_INLINE task<void> run_until_stopped(event* stop, scope* tasks) {
    auto stopped = stop->wait();
    co_await stopped;
    tasks->cancel();
    auto joined = tasks->join();
    co_await joined;
}

} // namespace detail

SKEIN_INLINE loop_thread::loop_thread(std::string name) {
    std::promise<void> ready;
    auto started = ready.get_future();
    thread_ = std::thread([this, name = std::move(name), &ready] { main(name, ready); });
    started.get();
}

SKEIN_INLINE loop_thread::~loop_thread() {
    SKEIN_CHECK(std::this_thread::get_id() != thread_.get_id(),
                "a loop_thread is destroyed on its own thread");
    loop_->post_from_any_thread([this] { stop_->set(); });
    thread_.join();
}

SKEIN_INLINE void loop_thread::main(const std::string& name, std::promise<void>& ready) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    real_loop here;
    event stop;
    scope tasks;
    loop_ = &here;
    stop_ = &stop;
    tasks_ = &tasks;
    ready.set_value();
    here.run(detail::run_until_stopped(&stop, &tasks));
}

} // namespace skein::net

// ======== skein/net/readable_fd.hpp
// Waiting until a file descriptor can be read: pipes, pidfds, eventfds, whatever the kernel can poll.
//
//     auto ended = net::wait_readable(loop, child.pidfd());
//     co_await ended;


namespace skein::net {

/// Suspends until fd is readable or its other end has gone; reads nothing.
///   fd      stays the caller's; must be open when this starts
///   errors  io (not a descriptor that can be polled), cancelled
[[nodiscard]] task<void> wait_readable(real_loop& on, int fd);

} // namespace skein::net


// ======== skein/net/detail/readable_fd.ipp
// A descriptor on Asio's poller for the time of one wait.


// ======== skein/net/system_error.hpp
// From errno and Asio's error codes to skein::error, the same mapping everywhere.


#include <string>
#include <system_error>

namespace skein::net {

/// The kind of failure behind an errno value.
[[nodiscard]] errc errc_of(int system) noexcept;
/// The kind of failure behind a code of Asio or of the system.
[[nodiscard]] errc errc_of(const std::error_code& code) noexcept;

/// "what: Connection refused", with the kind from the code.
[[nodiscard]] error code_error(const std::error_code& code, std::string what);
/// The same from an errno value.
[[nodiscard]] error system_error(int system, std::string what);

} // namespace skein::net


// ======== skein/net/detail/system_error.ipp
// The one table from errno and Asio's codes to kinds of failure.


#include <cerrno>
#include <utility>

namespace skein::net {

SKEIN_INLINE errc errc_of(int system) noexcept {
    switch (system) {
    case ECANCELED: return errc::cancelled;
    case ETIMEDOUT: return errc::timeout;
    case ECONNREFUSED: return errc::refused;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN: return errc::refused;
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ENOTCONN:
    case ESHUTDOWN: return errc::reset;
    case EADDRINUSE:
    case EEXIST: return errc::already_exists;
    case EACCES:
    case EPERM: return errc::permission_denied;
    case ENOENT:
    case EADDRNOTAVAIL: return errc::not_found;
    case ENOSPC:
    case EDQUOT: return errc::disk_full;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM: return errc::exhausted;
    case EINVAL:
    case ENAMETOOLONG:
    case EAFNOSUPPORT: return errc::invalid_argument;
    case EBADF: return errc::closed;
    default: return errc::io;
    }
}

SKEIN_INLINE errc errc_of(const std::error_code& code) noexcept {
    if (code == asio::error::operation_aborted) return errc::cancelled;
    if (code == asio::error::eof) return errc::closed;
    if (code == asio::error::host_not_found || code == asio::error::host_not_found_try_again ||
        code == asio::error::service_not_found) {
        return errc::not_found;
    }
    if (code.category() == std::system_category() || code.category() == std::generic_category() ||
        code.category() == asio::error::get_system_category()) {
        return errc_of(code.value());
    }
    return errc::io;
}

SKEIN_INLINE error code_error(const std::error_code& code, std::string what) {
    return error(errc_of(code), std::move(what)).with_cause(code.message());
}

SKEIN_INLINE error system_error(int system, std::string what) {
    return code_error(std::error_code(system, std::system_category()), std::move(what));
}

} // namespace skein::net

// ======== skein/net/use_task.hpp
// Any Asio operation, awaited in a skein::task that runs on a real_loop.
//
//     asio::steady_timer timer(loop.context(), 10ms);
//     co_await timer.async_wait(skein::use_task);                    // throws skein::error
//     auto n = co_await socket.async_read_some(buffer, skein::use_task_result);   // result<size_t>
//
// The operation starts when it is awaited and ends before the await does: a cancelled task asks Asio
// to cancel the operation (terminal) and goes on when its handler has been called. An operation that
// drops its handler without calling it gives errc::cancelled.


#include <coroutine>
#include <exception>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace skein {

/// The completion token; use the objects below.
template <bool AsResult>
struct use_task_t {};

/// Throws skein::error; gives what follows the error code: nothing, one value, or a tuple.
inline constexpr use_task_t<false> use_task{};
/// Gives result<...> instead of throwing (cancellation of the task still throws).
inline constexpr use_task_t<true> use_task_result{};

inline auto& net::real_loop::context() noexcept { return context_->io; }

namespace net::detail {

/// What an operation's signature means: a leading error_code or exception_ptr is a failure.
template <class... Args>
struct completion {
    using value = std::conditional_t<sizeof...(Args) == 0, void, std::tuple<Args...>>;
    static std::optional<error> failure(const std::tuple<Args...>&) { return std::nullopt; }
    static std::tuple<Args...> rest(std::tuple<Args...>&& all) { return std::move(all); }
};
template <class... Args>
struct completion<std::error_code, Args...> {
    using value = std::conditional_t<sizeof...(Args) == 0, void, std::tuple<Args...>>;
    static std::optional<error> failure(const std::tuple<std::error_code, Args...>& all) {
        if (!std::get<0>(all)) return std::nullopt;
        return code_error(std::get<0>(all), "asio operation failed");
    }
    static std::tuple<Args...> rest(std::tuple<std::error_code, Args...>&& all) {
        return std::apply([](auto&&, auto&&... r) { return std::tuple<Args...>(std::move(r)...); },
                          std::move(all));
    }
};
template <class... Args>
struct completion<std::exception_ptr, Args...> {
    using value = std::conditional_t<sizeof...(Args) == 0, void, std::tuple<Args...>>;
    static std::optional<error> failure(const std::tuple<std::exception_ptr, Args...>& all) {
        if (!std::get<0>(all)) return std::nullopt;
        return skein::to_error(std::get<0>(all));
    }
    static std::tuple<Args...> rest(std::tuple<std::exception_ptr, Args...>&& all) {
        return std::apply([](auto&&, auto&&... r) { return std::tuple<Args...>(std::move(r)...); },
                          std::move(all));
    }
};

template <class Tuple>
struct single_or_tuple {
    using type = Tuple;
};
template <>
struct single_or_tuple<void> {
    using type = void;
};
template <class T>
struct single_or_tuple<std::tuple<T>> {
    using type = T;
};

/// One operation under way; lives in the awaiting frame.
template <class... Args>
class asio_operation : public waiter {
public:
    void complete(Args... args) {
        outcome_.emplace(std::move(args)...);
        finish();
    }
    void abandoned() noexcept { finish(); }
    [[nodiscard]] asio::cancellation_slot slot() noexcept { return signal_.slot(); }

protected:
    void cancel_requested() noexcept override {
        cancel_asked_ = true;
        signal_.emit(asio::cancellation_type::terminal);
    }
    std::optional<std::tuple<Args...>> outcome_;

private:
    void finish() noexcept {
        const bool lost = !outcome_ || is_abort(*outcome_);
        if (cancel_asked_ && lost) {
            end_cancelled();
        } else {
            wake();
        }
    }
    template <class First, class... More>
    static bool is_abort(const std::tuple<First, More...>& all) noexcept {
        if constexpr (std::is_same_v<First, std::error_code>) {
            return std::get<0>(all) == asio::error::operation_aborted;
        } else {
            return false;
        }
    }
    static bool is_abort(const std::tuple<>&) noexcept { return false; }

    asio::cancellation_signal signal_;
    bool cancel_asked_ = false;
};

/// The handler given to Asio: owns the right to end the operation.
template <class... Args>
class asio_handler {
public:
    using cancellation_slot_type = asio::cancellation_slot;

    explicit asio_handler(asio_operation<Args...>& op) noexcept : op_(&op), slot_(op.slot()) {}
    asio_handler(asio_handler&& other) noexcept
        : op_(std::exchange(other.op_, nullptr)), slot_(other.slot_) {}
    asio_handler& operator=(asio_handler&&) = delete;
    ~asio_handler() {
        if (op_ != nullptr) op_->abandoned();
    }
    void operator()(Args... args) { std::exchange(op_, nullptr)->complete(std::move(args)...); }
    [[nodiscard]] cancellation_slot_type get_cancellation_slot() const noexcept { return slot_; }

private:
    asio_operation<Args...>* op_;
    asio::cancellation_slot slot_;
};

/// What an initiating function returns for use_task: starts the operation when awaited.
template <bool AsResult, class Initiation, class Arguments, class... Args>
class asio_awaitable : public asio_operation<Args...> {
    using meaning = completion<Args...>;
    using value_type = typename single_or_tuple<typename meaning::value>::type;
    using return_type = std::conditional_t<AsResult, result<value_type>, value_type>;

public:
    template <class I, class... Rest>
    explicit asio_awaitable(I&& initiation, Rest&&... rest)
        : initiation_(std::forward<I>(initiation)), arguments_(std::forward<Rest>(rest)...) {}

    // Moved only before it is awaited.
    asio_awaitable(asio_awaitable&& other) noexcept
        : asio_operation<Args...>(), initiation_(std::move(other.initiation_)),
          arguments_(std::move(other.arguments_)) {}

    bool await_ready() const noexcept { return false; }

    template <skein::detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        if (!this->arm(h)) return false;
        // The caller may be resumed only by the loop, so `this` outlives the call.
        // An initiation that throws has dropped its handler, which may have queued this frame: the
        // exception must not resume it a second time, so await_resume throws it.
        try {
            std::apply(
                [this](auto&&... rest) {
                    std::move(initiation_)(asio_handler<Args...>(*this), std::move(rest)...);
                },
                std::move(arguments_));
        } catch (...) {
            initiation_failure_ = std::current_exception();
            this->wake();
        }
        return true;
    }

    return_type await_resume() {
        if (initiation_failure_) std::rethrow_exception(std::move(initiation_failure_));
        this->throw_if_cancelled();
        std::optional<error> failure;
        if (!this->outcome_) {
            failure = error(errc::cancelled, "asio operation dropped its handler");
        } else {
            failure = meaning::failure(*this->outcome_);
        }
        if constexpr (AsResult) {
            if (failure) return *failure;
        } else {
            if (failure) throw *failure;
        }
        if constexpr (std::is_void_v<value_type>) {
            return return_type();
        } else {
            auto rest = meaning::rest(std::move(*this->outcome_));
            if constexpr (std::tuple_size_v<decltype(rest)> == 1) {
                return return_type(std::get<0>(std::move(rest)));
            } else {
                return return_type(std::move(rest));
            }
        }
    }

private:
    Initiation initiation_;
    Arguments arguments_;
    std::exception_ptr initiation_failure_;
};

} // namespace net::detail
} // namespace skein

template <bool AsResult, class... Args>
class asio::async_result<skein::use_task_t<AsResult>, void(Args...)> {
public:
    template <class Initiation, class... Rest>
    static auto initiate(Initiation&& initiation, skein::use_task_t<AsResult>, Rest&&... rest) {
        using awaitable = skein::net::detail::asio_awaitable<AsResult, std::decay_t<Initiation>,
                                                             std::tuple<std::decay_t<Rest>...>,
                                                             std::decay_t<Args>...>;
        return awaitable(std::forward<Initiation>(initiation), std::forward<Rest>(rest)...);
    }
};


// ======== skein/net/detail/readable_fd.ipp, continued
#include <cerrno>
#include <system_error>

#include <fmt/core.h>
#include <fcntl.h>

namespace skein::net {

SKEIN_INLINE task<void> wait_readable(real_loop& on, int fd) {
    // A copy: Asio wants to own what it waits for.
    const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) {
        throw code_error(std::error_code(errno, std::system_category()),
                         fmt::format("cannot wait for file descriptor {}", fd));
    }
    asio::posix::stream_descriptor watched(on.context(), copy);
    auto readable = watched.async_wait(asio::posix::stream_descriptor::wait_read, use_task);
    co_await readable;
}

} // namespace skein::net

// ======== skein/net/real_network.hpp
// TCP and Unix sockets behind net::network.
//
//     net::real_loop loop;
//     net::real_network network(loop);
//     auto listener = network.listen(net::address::tcp("127.0.0.1", 0));
//
// TCP gets TCP_NODELAY; a Unix path is removed when its listener closes, and taken over when nobody
// listens there any more. Streams and listeners must not outlive the loop.


#include <memory>
#include <string>

namespace skein::net {

/// The real world's network. Cheap; one per loop.
class real_network final : public network {
public:
    explicit real_network(real_loop& on) noexcept : loop_(on) {}

    task<std::unique_ptr<stream>> connect(address to) override;
    std::unique_ptr<listener> listen(address at) override;

private:
    real_loop& loop_;
};

/// Takes over a connected Unix stream socket, e.g. one end of a socketpair or one inherited from a
/// parent. Owns fd from now on, also when it throws.
///   errors  io (not a socket)
[[nodiscard]] std::unique_ptr<stream> adopt_unix_stream(real_loop& on, int fd, std::string peer);

} // namespace skein::net


// ======== skein/net/detail/real_network.ipp
// Making sockets: connect, listen, and what may go wrong with either.


// ======== skein/net/detail/socket_stream.hpp
// Sockets as net::stream and net::listener; for real_network.ipp only.
//
// Reading tries the system call first when more is likely to be there (the last read filled its
// buffer); otherwise it goes to Asio at once, whose own attempt comes first. That way an idle
// connection costs one failed recv per message, as a bare Asio program does.


#include <algorithm>
#include <array>
#include <cerrno>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include <fmt/core.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

namespace skein::net::detail {

/// Child processes must not inherit sockets: they would keep a dead peer's connection open.
void close_on_exec(int fd) noexcept;

/// The text of an IP address, and of a TCP peer; IPv4 as such also in its IPv6 form.
std::string host_text(const asio::ip::address& a);
std::string endpoint_text(const asio::ip::tcp::endpoint& e);

/// Opens a socket that no child inherits, from its first moment on.
template <class Socket>
std::error_code open_socket(Socket& socket, const typename Socket::protocol_type& protocol) {
    const int fd = ::socket(protocol.family(), protocol.type() | SOCK_CLOEXEC, protocol.protocol());
    if (fd < 0) return std::error_code(errno, std::system_category());
    std::error_code code;
    socket.assign(protocol, fd, code);
    if (code) ::close(fd);
    return code;
}

/// Waits for one Asio operation of a socket; cancelling the task cancels the socket's operations, and
/// an operation that was only hit by its neighbour's cancellation is started again.
template <class Socket>
class socket_operation : public waiter {
public:
    socket_operation(Socket& socket, mut_byte_span into) noexcept : socket_(socket), into_(into) {}
    explicit socket_operation(Socket& socket) noexcept : socket_(socket), writing_(true) {}

    bool await_ready() const noexcept { return false; }
    template <skein::detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        if (!arm(h)) return false;
        start();
        return true;
    }
    /// Bytes read (0 for a write wait); the code tells the rest.
    std::size_t await_resume() const {
        throw_if_cancelled();
        return bytes_;
    }
    [[nodiscard]] const std::error_code& code() const noexcept { return code_; }

private:
    struct handler {
        socket_operation* op;
        void operator()(std::error_code code, std::size_t bytes) const { op->ended(code, bytes); }
        void operator()(std::error_code code) const { op->ended(code, 0); }
    };

    void start() {
        if (writing_) {
            socket_.async_wait(Socket::wait_write, handler{this});
        } else {
            socket_.async_receive(asio::buffer(into_.data(), into_.size()), handler{this});
        }
    }
    void ended(std::error_code code, std::size_t bytes) {
        if (code == asio::error::operation_aborted && socket_.is_open()) {
            if (cancel_asked_) return end_cancelled();
            return start();
        }
        code_ = code;
        bytes_ = bytes;
        wake();
    }
    void cancel_requested() noexcept override {
        cancel_asked_ = true;
        std::error_code ignored;
        socket_.cancel(ignored);
    }

    Socket& socket_;
    mut_byte_span into_;
    std::error_code code_;
    std::size_t bytes_ = 0;
    bool writing_ = false;
    bool cancel_asked_ = false;
};

/// A connected socket as a stream.
template <class Protocol>
class socket_stream final : public stream {
    using socket_type = typename Protocol::socket;

public:
    socket_stream(socket_type socket, std::string peer)
        : socket_(std::move(socket)), peer_(std::move(peer)) {
        std::error_code ignored;
        socket_.non_blocking(true, ignored);
        close_on_exec(socket_.native_handle());
        if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
            socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
        }
    }
    ~socket_stream() override {
        SKEIN_CHECK(!reading_ && !writing_, "a stream is destroyed while it is read or written");
    }

    task<std::size_t> read_some(mut_byte_span into) override {
        SKEIN_CHECK(!reading_, "two reads of one stream at a time");
        if (into.empty()) co_return 0;
        if (more_likely_) {
            if (const auto got = try_read(into)) co_return *got;
        }
        check_open();
        reading_ = true;
        const flag_guard guard(reading_);
        socket_operation<socket_type> operation(socket_, into);
        const std::size_t got = co_await operation;
        if (operation.code() == asio::error::eof) co_return 0;
        if (operation.code()) fail(operation.code(), "read from");
        more_likely_ = got == into.size();
        co_return got;
    }

    task<void> write_all(std::span<const byte_span> batch) override {
        SKEIN_CHECK(!writing_, "two writes of one stream at a time");
        writing_ = true;
        const flag_guard guard(writing_);
        std::size_t skip = 0; // bytes of batch.front() already written
        for (;;) {
            while (!batch.empty() && skip >= batch.front().size()) {
                skip -= batch.front().size();
                batch = batch.subspan(1);
            }
            if (batch.empty()) co_return;
            const std::size_t put = write_now(batch, skip);
            skip += put;
            if (put == 0) {
                socket_operation<socket_type> operation(socket_);
                co_await operation;
                if (operation.code()) fail(operation.code(), "write to");
            }
        }
    }

    std::optional<std::size_t> try_read(mut_byte_span into) override {
        if (into.empty()) return 0;
        check_open();
        for (;;) {
            const auto got =
                ::recv(socket_.native_handle(), into.data(), into.size(), MSG_DONTWAIT);
            if (got >= 0) {
                more_likely_ = static_cast<std::size_t>(got) == into.size();
                return static_cast<std::size_t>(got);
            }
            if (errno == EINTR) continue;
            more_likely_ = false;
            if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
            fail(std::error_code(errno, std::system_category()), "read from");
        }
    }

    std::size_t try_write(std::span<const byte_span> batch) override { return write_now(batch, 0); }

    void close_send() noexcept override {
        std::error_code ignored;
        if (socket_.is_open()) socket_.shutdown(asio::socket_base::shutdown_send, ignored);
    }
    void close() noexcept override {
        std::error_code ignored;
        if (socket_.is_open()) socket_.close(ignored);
    }
    [[nodiscard]] std::string peer_name() const override { return peer_; }
    [[nodiscard]] std::string peer_host() const override {
        if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
            std::error_code code;
            const auto remote = socket_.remote_endpoint(code);
            if (!code) return host_text(remote.address());
        }
        return {};
    }
    [[nodiscard]] std::optional<std::uint32_t> peer_user() const override {
        if constexpr (std::is_same_v<Protocol, asio::local::stream_protocol>) {
            ucred who{};
            socklen_t size = sizeof who;
            const int fd = const_cast<socket_type&>(socket_).native_handle();
            if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0) return who.uid;
        }
        return std::nullopt;
    }
    [[nodiscard]] bool is_local() const noexcept override {
        return std::is_same_v<Protocol, asio::local::stream_protocol>;
    }

private:
    struct flag_guard {
        explicit flag_guard(bool& of) noexcept : flag(of) {}
        flag_guard(const flag_guard&) = delete;
        ~flag_guard() { flag = false; }
        bool& flag;
    };

    void check_open() const {
        if (!socket_.is_open()) throw error(errc::closed, "stream to " + peer_ + " is closed");
    }
    [[noreturn]] void fail(const std::error_code& code, const char* what) const {
        if (!socket_.is_open()) throw error(errc::closed, "stream to " + peer_ + " was closed");
        throw code_error(code, fmt::format("{} {} failed", what, peer_));
    }

    /// Bytes written without waiting, at most 64 parts in one call; 0 = would wait.
    std::size_t write_now(std::span<const byte_span> batch, std::size_t skip) {
        check_open();
        constexpr std::size_t most = 64;
        std::array<iovec, most> parts;
        std::size_t total = 0;
        for (;;) {
            std::size_t count = 0, asked = 0, offset = skip + total;
            for (const byte_span& part : batch) {
                if (offset >= part.size()) {
                    offset -= part.size();
                    continue;
                }
                if (count == most) break;
                parts[count].iov_base = const_cast<std::byte*>(part.data() + offset);
                parts[count].iov_len = part.size() - offset;
                asked += part.size() - offset;
                offset = 0;
                ++count;
            }
            if (count == 0) return total;
            msghdr message{};
            message.msg_iov = parts.data();
            message.msg_iovlen = count;
            const auto put =
                ::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (put < 0) {
                if (errno == EINTR) continue;
                if (errno == EAGAIN || errno == EWOULDBLOCK) return total;
                fail(std::error_code(errno, std::system_category()), "write to");
            }
            total += static_cast<std::size_t>(put);
            if (static_cast<std::size_t>(put) < asked) return total;
        }
    }

    socket_type socket_;
    std::string peer_;
    bool more_likely_ = false;
    bool reading_ = false, writing_ = false;
};

/// A listening socket. Knows which file it made, and removes just that one.
template <class Protocol>
class socket_listener final : public listener {
    using acceptor_type = typename Protocol::acceptor;

public:
    socket_listener(acceptor_type acceptor, address local)
        : acceptor_(std::move(acceptor)), local_(std::move(local)) {
        struct stat info{};
        if (local_.kind == scheme::unix_path && ::lstat(local_.host.c_str(), &info) == 0) {
            device_ = info.st_dev;
            inode_ = info.st_ino;
        }
    }
    ~socket_listener() override { close(); }

    task<std::unique_ptr<stream>> accept() override {
        if (!acceptor_.is_open()) throw closed();
        auto got = co_await acceptor_.async_accept(use_task_result);
        if (!got) {
            if (!acceptor_.is_open()) throw closed();
            throw error(got.error().code(), "accept at " + to_string(local_) + " failed")
                .with_cause(got.error().cause());
        }
        std::string peer = to_string(local_);
        if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
            std::error_code code;
            const auto remote = got->remote_endpoint(code);
            if (!code) peer = endpoint_text(remote);
        }
        co_return std::make_unique<socket_stream<Protocol>>(std::move(*got), std::move(peer));
    }
    [[nodiscard]] address local() const override { return local_; }

    void close() noexcept override {
        std::error_code ignored;
        if (!acceptor_.is_open()) return;
        struct stat info{};
        if (inode_ != 0 && ::lstat(local_.host.c_str(), &info) == 0 && info.st_ino == inode_ &&
            info.st_dev == device_) {
            ::unlink(local_.host.c_str());
        }
        acceptor_.close(ignored);
    }

private:
    [[nodiscard]] error closed() const {
        return error(errc::closed, "listener at " + to_string(local_) + " is closed");
    }
    acceptor_type acceptor_;
    address local_;
    dev_t device_ = 0;
    ino_t inode_ = 0;
};

} // namespace skein::net::detail


// ======== skein/net/detail/real_network.ipp, continued
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace skein::net {
namespace detail {

SKEIN_INLINE void close_on_exec(int fd) noexcept { ::fcntl(fd, F_SETFD, FD_CLOEXEC); }

SKEIN_INLINE std::string host_text(const asio::ip::address& a) {
    // What came over IPv4 to a socket for both.
    if (a.is_v6() && a.to_v6().is_v4_mapped())
        return asio::ip::make_address_v4(asio::ip::v4_mapped, a.to_v6()).to_string();
    return a.to_string();
}

SKEIN_INLINE std::string endpoint_text(const asio::ip::tcp::endpoint& e) {
    return to_string(address::tcp(host_text(e.address()), e.port()));
}

/// A name look-up under way. The system's look-up cannot be interrupted: who waits for it may leave,
/// then it ends alone and its handler owns all of this.
struct name_lookup {
    explicit name_lookup(asio::io_context& on) : resolver(on) {}
    asio::ip::tcp::resolver resolver;
    asio::ip::tcp::resolver::results_type found;
    std::error_code code;
    event done;
};

SKEIN_INLINE task<std::vector<asio::ip::tcp::endpoint>> resolve(real_loop* on, address name) {
    const auto lookup = std::make_shared<name_lookup>(on->context());
    lookup->resolver.async_resolve(
        name.host, std::to_string(name.port),
        [lookup](const std::error_code& code, asio::ip::tcp::resolver::results_type found) {
            lookup->code = code;
            lookup->found = std::move(found);
            lookup->done.set();
        });
    auto ended = lookup->done.wait();
    co_await ended;
    if (lookup->code) {
        throw error(errc::not_found, fmt::format("connect {}: cannot resolve the name '{}'",
                                                 to_string(name), name.host))
            .with_cause(lookup->code.message())
            .with_hint("check the spelling, or give the numeric address");
    }
    std::vector<asio::ip::tcp::endpoint> candidates;
    for (const auto& entry : lookup->found) candidates.push_back(entry.endpoint());
    co_return candidates;
}

SKEIN_INLINE task<std::unique_ptr<stream>> connect_tcp(real_loop* on, address to) {
    std::vector<asio::ip::tcp::endpoint> candidates;
    std::error_code code;
    const auto numeric = asio::ip::make_address(to.host, code);
    if (!code) {
        candidates.emplace_back(numeric, to.port);
    } else {
        auto looking = resolve(on, to);
        candidates = co_await looking;
    }

    std::optional<error> last;
    for (const auto& candidate : candidates) {
        asio::ip::tcp::socket socket(on->context());
        if (const auto failed = open_socket(socket, candidate.protocol())) {
            last = code_error(failed, "cannot make a socket");
            continue;
        }
        auto done = co_await socket.async_connect(candidate, use_task_result);
        if (done) {
            co_return std::make_unique<socket_stream<asio::ip::tcp>>(std::move(socket),
                                                                     to_string(to));
        }
        last = done.error();
    }
    throw error(last ? last->code() : errc::not_found, "connect " + to_string(to) + " failed")
        .with_cause(last ? last->cause() : "the name has no address")
        .with_hint("is the program there running, and is this the right port?");
}

/// The socket address of a unix kind; throws invalid_argument when it does not fit.
SKEIN_INLINE asio::local::stream_protocol::endpoint unix_endpoint(const address& a) {
    std::string path = a.host;
    if (a.kind == scheme::unix_abstract) path[0] = '\0';
    constexpr std::size_t most = sizeof(sockaddr_un::sun_path) - 1;
    if (path.size() > most) {
        throw error(errc::invalid_argument,
                    fmt::format("{}: a socket path may have {} bytes, this one has {}",
                                to_string(a), most, path.size()))
            .with_hint("use a shorter folder, or unix-abstract:@name");
    }
    return asio::local::stream_protocol::endpoint(path);
}

SKEIN_INLINE task<std::unique_ptr<stream>> connect_unix(real_loop* on, address to) {
    const auto endpoint = unix_endpoint(to);
    asio::local::stream_protocol::socket socket(on->context());
    if (const auto failed = open_socket(socket, endpoint.protocol()))
        throw code_error(failed, "connect " + to_string(to) + " failed");
    auto done = co_await socket.async_connect(endpoint, use_task_result);
    if (!done) {
        const errc kind =
            done.error().code() == errc::not_found ? errc::refused : done.error().code();
        throw error(kind, "connect " + to_string(to) + " failed")
            .with_cause(done.error().cause())
            .with_hint("is the program there running?");
    }
    co_return std::make_unique<socket_stream<asio::local::stream_protocol>>(std::move(socket),
                                                                            to_string(to));
}

/// Opens, binds and listens; throws with what the user can do.
template <class Protocol>
typename Protocol::acceptor bound(real_loop& on, const typename Protocol::endpoint& at,
                                  const address& shown, const char* in_use_hint) {
    typename Protocol::acceptor acceptor(on.context());
    std::error_code code;
    const auto check = [&](const char* step) {
        if (!code) return;
        error e(errc_of(code), fmt::format("listen {}: {} failed", to_string(shown), step));
        e.with_cause(code.message());
        if (code.value() == EADDRINUSE) e.with_hint(in_use_hint);
        if (code.value() == EACCES) e.with_hint("ports below 1024 and foreign folders need rights");
        if (code.value() == EADDRNOTAVAIL)
            e.with_hint("no interface of this host has that address");
        throw e;
    };
    acceptor.open(at.protocol(), code);
    check("open");
    close_on_exec(acceptor.native_handle());
    if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
        acceptor.set_option(asio::socket_base::reuse_address(true), code);
        check("SO_REUSEADDR");
        if (at.address().is_v6() && at.address().is_unspecified()) {
            acceptor.set_option(asio::ip::v6_only(false), code);
            check("IPV6_V6ONLY");
        }
    }
    acceptor.bind(at, code);
    check("bind");
    acceptor.listen(asio::socket_base::max_listen_connections, code);
    check("listen");
    return acceptor;
}

inline constexpr const char* port_in_use =
    "another program, or another run of this one, holds the port; choose another, or 0 for any";

/// One socket for IPv6 and IPv4; IPv4 alone on a host without IPv6.
SKEIN_INLINE std::unique_ptr<listener> listen_everywhere(real_loop& on, address at) {
    const auto listening = [&](asio::ip::tcp::acceptor acceptor) {
        at.port = acceptor.local_endpoint().port();
        return std::make_unique<socket_listener<asio::ip::tcp>>(std::move(acceptor), at);
    };
    try {
        const asio::ip::tcp::endpoint all(asio::ip::address_v6::any(), at.port);
        return listening(bound<asio::ip::tcp>(on, all, at, port_in_use));
    } catch (const error& e) {
        // No such family, or no address of it.
        if (e.code() != errc::invalid_argument && e.code() != errc::not_found) throw;
    }
    const asio::ip::tcp::endpoint all(asio::ip::address_v4::any(), at.port);
    return listening(bound<asio::ip::tcp>(on, all, at, port_in_use));
}

SKEIN_INLINE std::unique_ptr<listener> listen_tcp(real_loop& on, address at) {
    std::error_code code;
    if (at.host == "*") return listen_everywhere(on, std::move(at));
    const std::string host = at.host == "localhost" ? "127.0.0.1" : at.host;
    auto ip = asio::ip::make_address(host, code);
    if (code) { // listening happens at the edge of a program: a blocking look-up is fine here
        asio::ip::tcp::resolver resolver(on.context());
        const auto found = resolver.resolve(host, std::to_string(at.port), code);
        if (code || found.empty()) {
            throw error(errc::not_found,
                        fmt::format("listen {}: cannot resolve '{}'", to_string(at), host))
                .with_hint("give a numeric address such as 127.0.0.1 or 0.0.0.0");
        }
        ip = found.begin()->endpoint().address();
    }
    auto acceptor = bound<asio::ip::tcp>(on, asio::ip::tcp::endpoint(ip, at.port), at, port_in_use);
    at.port = acceptor.local_endpoint().port();
    return std::make_unique<socket_listener<asio::ip::tcp>>(std::move(acceptor), std::move(at));
}

/// Removes a socket file whose listener is gone; throws when somebody is there, or no socket.
SKEIN_INLINE void take_over_path(const address& at) {
    struct stat info{};
    if (::lstat(at.host.c_str(), &info) != 0) return;
    if (!S_ISSOCK(info.st_mode)) {
        throw error(errc::already_exists,
                    fmt::format("listen {}: a file is there that is not a socket", to_string(at)))
            .with_hint("choose another path");
    }
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) throw system_error(errno, "socket failed");
    const auto endpoint = unix_endpoint(at);
    const int rc = ::connect(fd, endpoint.data(), static_cast<socklen_t>(endpoint.size()));
    const int why = rc == 0 ? 0 : errno;
    ::close(fd);
    if (why != ECONNREFUSED && why != ENOENT) {
        throw error(errc::already_exists,
                    fmt::format("listen {}: the path is in use", to_string(at)))
            .with_hint("another program listens there; choose another path");
    }
    ::unlink(at.host.c_str());
}

SKEIN_INLINE std::unique_ptr<listener> listen_unix(real_loop& on, address at) {
    const auto endpoint = unix_endpoint(at);
    if (at.kind == scheme::unix_path) take_over_path(at);
    auto acceptor = bound<asio::local::stream_protocol>(
        on, endpoint, at, "another program listens there; choose another path or name");
    return std::make_unique<socket_listener<asio::local::stream_protocol>>(std::move(acceptor),
                                                                           std::move(at));
}

} // namespace detail

SKEIN_INLINE task<std::unique_ptr<stream>> real_network::connect(address to) {
    switch (to.kind) {
    case scheme::tcp: return detail::connect_tcp(&loop_, std::move(to));
    case scheme::unix_path:
    case scheme::unix_abstract: return detail::connect_unix(&loop_, std::move(to));
    case scheme::sim: break;
    }
    throw error(errc::not_supported, "connect " + to_string(to) + ": not a real address");
}

SKEIN_INLINE std::unique_ptr<listener> real_network::listen(address at) {
    switch (at.kind) {
    case scheme::tcp: return detail::listen_tcp(loop_, at);
    case scheme::unix_path:
    case scheme::unix_abstract: return detail::listen_unix(loop_, at);
    case scheme::sim: break;
    }
    throw error(errc::not_supported, "listen " + to_string(at) + ": not a real address");
}

SKEIN_INLINE std::unique_ptr<stream> adopt_unix_stream(real_loop& on, int fd, std::string peer) {
    asio::local::stream_protocol::socket socket(on.context());
    std::error_code fault;
    socket.assign(asio::local::stream_protocol(), fd, fault);
    if (fault) {
        ::close(fd);
        throw code_error(fault, "cannot use an inherited socket to " + peer);
    }
    return std::make_unique<detail::socket_stream<asio::local::stream_protocol>>(std::move(socket),
                                                                                 std::move(peer));
}

} // namespace skein::net


// ======== skein/cluster/detail/joined_group.ipp, continued
#include <unistd.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

class joined_group::impl {
public:
    impl(launch_environment place, net::token shared, joined_group_options options)
        : where(std::move(place)), secret(shared), host(rt::host_name()),
          options_(std::move(options)), control_("control") {
        control_.run([this] { return join_unless_stopped(); });
    }
    ~impl() {
        control_.run([this] { return leave_hard(); });
    }
    impl(const impl&) = delete;
    impl& operator=(const impl&) = delete;

    std::vector<byte_buffer> exchange(std::string key, byte_buffer mine) {
        return control_.run([&] { return exchange_within(std::move(key), std::move(mine)); });
    }
    void leave(std::optional<error> why) {
        control_.run([&] { return end(std::move(why)); });
    }

    // Written by the constructor, then only read.
    launch_environment where;
    net::token secret;
    std::string host;
    int generation = 0;
    std::vector<member_info> members;
    loss_listeners losses;

private:
    /// What lives on the control thread.
    struct on_thread {
        explicit on_thread(net::real_loop& loop) : network(loop) {}
        net::real_network network;
        std::unique_ptr<group_server> server;
        std::unique_ptr<group_client> client;
        scope serving;
    };

    static task<void> serve(group_server* server) {
        auto run = server->run();
        (void)co_await run; // the ranks learn the outcome from the protocol
    }

    [[nodiscard]] member_info self() const {
        member_info me;
        me.rank = where.rank;
        me.world_size = where.world_size;
        me.local_rank = where.local_rank;
        me.local_size = where.local_size;
        me.host = host;
        me.pid = ::getpid();
        return me;
    }

    [[nodiscard]] group_options group() const {
        group_options options;
        options.world_size = where.world_size;
        options.generation = where.attempt;
        options.job = where.job_id;
        options.settings = options_.settings;
        options.secret = secret;
        options.join_deadline = options_.join_deadline;
        // A supervisor that is stopped for a while (Ctrl-Z) is not lost: its death closes the socket and
        // the kernel ends this process.
        if (is_supervised()) options.alive.mode = net::keep_alive_mode::automatic;
        return options;
    }

    /// When fd is readable, asks the work of `stop` to end.
    static task<void> watch(net::real_loop* loop, int fd, cancel_source stop) {
        auto asked = net::wait_readable(*loop, fd);
        co_await asked;
        stop.request();
    }

    task<void> join_unless_stopped() {
        state_ = std::make_unique<on_thread>(control_.loop());
        cancel_source stop;
        scope watching;
        if (options_.stop_fd >= 0) watching.spawn(watch(&control_.loop(), options_.stop_fd, stop));
        std::exception_ptr failure;
        try {
            auto joined = with_cancel(stop.token(), join_group());
            co_await joined;
        } catch (...) {
            failure = std::current_exception();
        }
        watching.cancel();
        auto watched = as_result(watching.join()); // without a watcher it is as good
        (void)co_await watched;
        if (!failure) co_return;
        const error stopped(
            errc::cancelled,
            fmt::format("rank {} was stopped while the ranks were meeting", where.rank));
        if (stop.requested() && state_->server) state_->server->abort(stopped, where.rank);
        auto cleared = clear(true);
        co_await cleared;
        if (stop.requested()) throw stopped;
        std::rethrow_exception(failure);
    }

    task<void> join_group() {
        const auto options = group();
        const auto at = meeting_point(where);
        if (where.rank == 0 && !is_supervised()) {
            state_->server =
                std::make_unique<group_server>(state_->network, listening_point(where), options);
            state_->serving.spawn(serve(state_->server.get()));
        }
        auto joined =
            group_client::join(state_->network, at, self(), options,
                               [this](int rank, const error& why) { losses.tell(rank, why); });
        state_->client = co_await joined;
        members = state_->client->members();
        generation = state_->client->generation();
    }

    task<std::vector<byte_buffer>> exchange_within(std::string key, byte_buffer mine) {
        if (!state_ || !state_->client)
            throw error(errc::closed, "exchange after leaving the group");
        auto exchanged = with_timeout(state_->client->exchange(key, std::move(mine)),
                                      options_.exchange_deadline);
        try {
            co_return co_await exchanged;
        } catch (const error& e) {
            if (e.code() != errc::timeout) throw;
            throw error(errc::timeout,
                        fmt::format("rank {} waited {:.3g} s for the other ranks at '{}'",
                                    where.rank, to_seconds(options_.exchange_deadline), key));
        }
    }

    task<void> end(std::optional<error> why) {
        if (!state_) co_return;
        if (state_->client) {
            auto ended = why ? state_->client->fail(*why) : state_->client->leave();
            co_await ended;
            state_->client.reset();
        }
        auto cleared = clear(false);
        co_await cleared;
    }
    task<void> leave_hard() {
        if (!state_) co_return;
        if (state_->client) {
            auto ended = state_->client->fail(error(errc::peer_lost, "it left without a word"));
            co_await ended;
            state_->client.reset();
        }
        auto cleared = clear(true);
        co_await cleared;
    }
    /// Ends serving: in order (waits for the other ranks) or at once.
    task<void> clear(bool at_once) {
        if (at_once) state_->serving.cancel();
        try {
            auto joined = state_->serving.join();
            co_await joined;
        } catch (const error&) { // cancelled, or a listener error that the join already reported
        }
        state_.reset();
    }

    joined_group_options options_;
    std::unique_ptr<on_thread> state_;
    net::loop_thread control_;
};

SKEIN_INLINE joined_group::joined_group(launch_environment where, net::token secret,
                                        joined_group_options options)
    : impl_(std::make_unique<impl>(std::move(where), secret, std::move(options))) {}
SKEIN_INLINE joined_group::~joined_group() = default;

SKEIN_INLINE int joined_group::rank() const { return impl_->where.rank; }
SKEIN_INLINE int joined_group::world_size() const { return impl_->where.world_size; }
SKEIN_INLINE int joined_group::local_rank() const { return impl_->where.local_rank; }
SKEIN_INLINE int joined_group::local_size() const { return impl_->where.local_size; }
SKEIN_INLINE int joined_group::generation() const { return impl_->generation; }
SKEIN_INLINE std::string joined_group::host() const { return impl_->host; }
SKEIN_INLINE net::token joined_group::secret() const { return impl_->secret; }
SKEIN_INLINE const std::vector<member_info>& joined_group::members() const noexcept {
    return impl_->members;
}
SKEIN_INLINE std::vector<byte_buffer> joined_group::exchange(std::string_view key, byte_span mine) {
    return impl_->exchange(std::string(key), to_buffer(mine));
}
SKEIN_INLINE subscription joined_group::on_lost(loss_listeners::listener lost) {
    return impl_->losses.add(std::move(lost));
}
SKEIN_INLINE bool joined_group::wait_lost(duration limit) { return impl_->losses.wait(limit); }
SKEIN_INLINE void joined_group::leave() { impl_->leave(std::nullopt); }
SKEIN_INLINE void joined_group::fail(const error& why) { impl_->leave(why); }

} // namespace skein::cluster

// ======== skein/cluster/supervisor.hpp
// The supervisor of one host: starts N copies of this program as ranks, serves their group, and starts
// all of them again from the last checkpoint when one is lost.
//
// What ends a rank for good (a usage error, a NaN, a full disk) is not tried again: it would only fail
// again. Ctrl-C asks the ranks to stop in order; a second one kills them. When the supervisor dies,
// however it dies, the kernel kills the ranks.


#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::cluster {

/// How many ranks a supervisor starts, with what, and how patient it is with them.
struct supervisor_options {
    int workers = 2;
    int max_failures = 3;                                       ///< restarts before it gives up
    duration backoff = time_constants::lan().job_restart_first; ///< before a restart; doubles
    duration stop_grace = time_constants::lan().stop_grace;     ///< from a stop request to the kill
    duration crash_grace = time_constants::lan().crash_grace;   ///< for the others to leave
    duration join_deadline = 2 * time_constants::lan().rendezvous_timeout;
    std::string executable = "/proc/self/exe";
    std::vector<std::string> argv; ///< of each rank; empty: this process's own
    std::vector<std::pair<std::string, std::string>> env; ///< added to each rank's environment
    net::keep_alive alive = group_options{}.alive;
    /// Told of each restart: the failure and how many restarts there have been, this one included.
    std::function<void(const error& why, int restart, int max_failures)> on_restart;
    /// Told of the first stop request, when it comes.
    std::function<void()> on_stop;
};

/// How the job ended.
struct supervisor_outcome {
    std::optional<error> failure; ///< the last attempt's; nothing = done
    int restarts = 0;
    int stop_signal = 0; ///< SIGINT or SIGTERM if a person or a system stopped it
};

/// True for failures that come again on every attempt.
[[nodiscard]] constexpr bool is_lasting(errc code) noexcept {
    switch (code) {
    case errc::usage:
    case errc::invalid_argument:
    case errc::not_supported:
    case errc::not_finite:
    case errc::mismatch:
    case errc::malformed:
    case errc::already_exists:
    case errc::permission_denied:
    case errc::not_found:
    case errc::disk_full: return true;
    default: return false;
    }
}

/// Runs the job to its end; blocks. Call it on the thread that lives longest (main): the ranks die with
/// it. Takes SIGINT and SIGTERM meanwhile.
[[nodiscard]] supervisor_outcome supervise(supervisor_options options);

} // namespace skein::cluster


// ======== skein/cluster/detail/supervisor.ipp
// One attempt = one group server + N children. It ends when the group has ended and every child is gone.


// ======== skein/core/stop_signals.hpp
// SIGINT and SIGTERM as a request to end in order: the first one is taken down, the second one ends
// the process as if nobody had asked for it, or is counted where there is more to end than one process.
//
//     skein::stop_signals stops;
//     while (!stops.asked().load()) step();
//     return stops.exit_code();          // 0, or 130 or 143 as a shell would say
//
// A loop waits for stops.fd() to become readable. The handler acts at once, also while the program's own
// code keeps the loop busy, so that a second Ctrl-C always works.


#include <atomic>
#include <cerrno>
#include <csignal>
#include <tuple>

#include <unistd.h>

namespace skein {

/// What the second signal does.
enum class second_signal : bool {
    ends_the_process, ///< also while the program's own code keeps everything busy
    is_counted,
};

/// Takes the two signals over while it lives; then the handlers before it are back. One inside another
/// works, the inner one hears. Made and destroyed by one thread; signals may reach any.
class stop_signals {
public:
    explicit stop_signals(second_signal second = second_signal::ends_the_process) {
        std::tie(read_, write_) = make_pipe();
        before_target_ = target().exchange(write_.get());
        before_asked_ = asked_flag().exchange(false);
        before_number_ = number().exchange(0);
        before_count_ = counter().exchange(0);
        before_counts_ = counts().exchange(second == second_signal::is_counted);
        struct sigaction how{};
        how.sa_handler = &on_signal;
        how.sa_flags = SA_RESTART;
        ::sigaction(SIGINT, &how, &before_int_);
        ::sigaction(SIGTERM, &how, &before_term_);
    }
    stop_signals(const stop_signals&) = delete;
    stop_signals& operator=(const stop_signals&) = delete;
    ~stop_signals() {
        ::sigaction(SIGINT, &before_int_, nullptr);
        ::sigaction(SIGTERM, &before_term_, nullptr);
        target().store(before_target_);
        asked_flag().store(before_asked_);
        number().store(before_number_);
        counter().store(before_count_);
        counts().store(before_counts_);
    }

    /// Readable from the first signal on; nobody has to read it. One byte for each signal.
    [[nodiscard]] int fd() const noexcept { return read_.get(); }
    /// True from the first signal on. For code that looks now and then.
    [[nodiscard]] const std::atomic<bool>& asked() const noexcept { return asked_flag(); }
    /// The signal that came first, or 0.
    [[nodiscard]] int which() const noexcept { return number().load(); }
    /// How many have come; at most 1 where the second one ends the process.
    [[nodiscard]] int count() const noexcept { return counter().load(); }
    /// 0, or 128 + the signal.
    [[nodiscard]] int exit_code() const noexcept { return which() == 0 ? 0 : 128 + which(); }

private:
    // What a handler may touch: nothing of the object, which another thread may be destroying.
    static std::atomic<int>& target() noexcept {
        static constinit std::atomic<int> fd{-1};
        return fd;
    }
    static std::atomic<bool>& asked_flag() noexcept {
        static constinit std::atomic<bool> value{false};
        return value;
    }
    static std::atomic<int>& number() noexcept {
        static constinit std::atomic<int> value{0};
        return value;
    }
    static std::atomic<int>& counter() noexcept {
        static constinit std::atomic<int> value{0};
        return value;
    }
    static std::atomic<bool>& counts() noexcept {
        static constinit std::atomic<bool> value{false};
        return value;
    }
    static void on_signal(int signal) {
        const int saved = errno;
        if (!counts().load()) {
            ::signal(SIGINT, SIG_DFL); // the second one may be the other
            ::signal(SIGTERM, SIG_DFL);
        }
        if (counter().fetch_add(1) == 0) number().store(signal);
        asked_flag().store(true);
        const char byte = 0;
        [[maybe_unused]] const auto n = ::write(target().load(), &byte, 1);
        errno = saved;
    }
    static_assert(std::atomic<int>::is_always_lock_free &&
                  std::atomic<bool>::is_always_lock_free); // or a handler must not touch them

    unique_fd read_, write_;
    int before_target_ = -1, before_number_ = 0, before_count_ = 0;
    bool before_asked_ = false, before_counts_ = false;
    struct sigaction before_int_{}, before_term_{};
};

} // namespace skein

// ======== skein/rt/children.hpp
// Child processes as one part: starting copies of this program with a boot message, seeing their end,
// asking them to leave and insisting. What is above decides what they are for and when one is started
// again.
//
//     rt::local_children here(loop);
//     rt::child_options how;
//     how.role = "worker";
//     how.name = "worker-1";
//     how.message = wire::encode(order);              // the child: rt::take_boot("worker")
//     auto starting = here.start(std::move(how));
//     auto worker = co_await starting;
//     auto stream = worker->take_stream();            // connected with the child's socket
//     auto leaving = rt::stop(*worker, 100ms, 2s);
//     const rt::child_end end = co_await leaving;     // "exited with 1", and why, if it said so
//
// `children` is an interface: processes of this host here, those of other hosts or of a simulated
// world elsewhere.


#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::net {
class real_loop;
}

namespace skein::rt {

/// Of a boot message: with its frame it fits the smallest pipe of Linux, 64 KiB.
inline constexpr std::size_t most_boot_bytes = std::size_t{32} << 10;

/// What is started.
struct child_options {
    std::string role;                          ///< what the child asks rt::take_boot() for
    std::string name;                          ///< as messages name it: "worker-2"
    byte_buffer message;                       ///< for the child alone; at most most_boot_bytes
    bool socket = true;                        ///< a connected socket between it and us
    shared_memory memory;                      ///< memory that it shares with us; may be none
    std::string executable = "/proc/self/exe"; ///< this program
    std::vector<std::string> argv;             ///< empty: those of this process
    std::string cwd; ///< its working directory; empty: that of this process
    /// Added to what it inherits. Other users of the host may read it: no secrets.
    std::vector<std::pair<std::string, std::string>> env;
};

/// How a child ended.
struct child_end {
    exit_status status;
    std::string last_words; ///< why it left, if it said so with leave_last_words()
};

/// What a process takes.
struct process_usage {
    std::uint64_t resident_bytes = 0;
    duration cpu_time{0}; ///< of all its threads since its start
};

/// What a host has for its processes, as far as this one may use it.
struct host_resources {
    int cores = 1;
    std::uint64_t memory_bytes = 0; ///< 0: the host does not tell
};

/// A process that was started. Destroying it kills it, and waits until it is gone.
class child {
public:
    child() = default;
    child(const child&) = delete;
    child& operator=(const child&) = delete;
    virtual ~child();

    [[nodiscard]] virtual const std::string& name() const noexcept = 0;
    [[nodiscard]] virtual std::int64_t pid() const noexcept = 0;
    /// False as soon as its end was seen by ended().
    [[nodiscard]] virtual bool running() const noexcept = 0;

    /// Suspends until it has ended; any number of tasks may wait, also afterwards. What it has sent can
    /// still be read from its stream, which then ends, also if somebody it left behind holds the socket.
    ///   errors  cancelled: the child is not touched, wait again later
    [[nodiscard]] virtual task<child_end> ended() = 0;

    /// Sends it a signal: SIGTERM asks it to leave. Nothing happens if it has ended.
    virtual void signal(int number) noexcept = 0;
    /// Ends it now, with all that it has started and that did not leave its process group.
    virtual void kill() noexcept = 0;

    /// What it takes now; zeros when it has ended.
    [[nodiscard]] virtual process_usage usage() = 0;

    /// Our end of its socket; nullptr if it has none, or when it has been taken.
    [[nodiscard]] virtual std::unique_ptr<net::stream> take_stream() = 0;
};

/// Where children run.
class children {
public:
    children() = default;
    children(const children&) = delete;
    children& operator=(const children&) = delete;
    virtual ~children();

    ///   errors  not_found, permission_denied (the executable); io: no descriptors or processes left;
    ///           too_large: the message
    ///           cancelled: what was started has been killed
    [[nodiscard]] virtual task<std::unique_ptr<child>> start(child_options how) = 0;

    /// What the host offers to all children together. May read files: ask once.
    [[nodiscard]] virtual host_resources resources() = 0;
};

namespace detail {
class starter;
}

/// Processes of this host. They get no Ctrl-C from the terminal: that is for the parent, which tells them.
///
/// A thread of its own starts them, one after the other, and the loop goes on meanwhile: a start may wait
/// for a file system, and costs the same however much memory this process has. They die with this process,
/// however it ends (Linux ends them with the thread that started them, which lives as long as this object
/// and all children that it started), and each with its object. The end of the thread that runs the loop
/// ends them only through these objects.
class local_children final : public children {
public:
    explicit local_children(net::real_loop& on) noexcept : loop_(on) {}
    [[nodiscard]] task<std::unique_ptr<child>> start(child_options how) override;
    [[nodiscard]] host_resources resources() override;

private:
    net::real_loop& loop_;
    std::shared_ptr<detail::starter> starter_; // from the first start on
};

/// Sees a child's end: waits for it, asks (SIGTERM) after `before_asking`, insists (kill) after
/// `before_killing` more.
///   errors  cancelled: the child may still run
[[nodiscard]] task<child_end> stop(child& which, duration before_asking, duration before_killing);

/// When something that failed is started again, and after how long.
struct restart_rules {
    int most = 3;                                                     ///< restarts in a row
    duration first_pause = time_constants::lan().child_restart_first; ///< before the first restart
    int factor = 2; ///< of each pause to the one before
    duration longest_pause = time_constants::lan().child_restart_most;
    bool (*is_lasting)(errc) = [](errc) { return false; }; ///< failures that would only come again
};
/// Counts failures in a row and says when to try again, by restart_rules.
class restart_policy {
public:
    explicit restart_policy(restart_rules rules) noexcept : rules_(rules) {}

    /// It has failed: the pause before it is started again; nothing: it is given up.
    [[nodiscard]] std::optional<duration> failed(const error& why) noexcept;
    /// It has worked: failures are counted anew.
    void worked() noexcept { failures_ = 0; }
    /// In a row.
    [[nodiscard]] int failures() const noexcept { return failures_; }

private:
    restart_rules rules_;
    int failures_ = 0;
};

} // namespace skein::rt


// ======== skein/rt/detail/children.ipp
// The bodies of rt/children.hpp: the processes of this host.


// ======== skein/core/available_cores.hpp
// How many cores this process may use, which in a container is fewer than the machine has.


#include <string>
#include <string_view>
#include <vector>

namespace skein {

/// The cores that the process may run on (taskset, cpusets), and no more than the quota of its cgroups
/// (docker --cpus, Kubernetes limits), rounded up; at least 1. Reads files: ask once.
[[nodiscard]] int available_cores();

namespace detail {

/// Where Linux tells of cgroups.
struct cgroup_files {
    std::string membership = "/proc/self/cgroup";
    std::string root = "/sys/fs/cgroup";
};
/// The folders of the cgroups that the process is in and of all groups above them, of version 2 or of a
/// controller ("cpu", "memory") of version 1. Some may not be there.
[[nodiscard]] std::vector<std::string> cgroup_folders(const cgroup_files& where,
                                                      std::string_view controller);
/// The quota in cores, rounded up, of version 1 or 2; 0: there is none.
[[nodiscard]] int cgroup_cores(const cgroup_files& where);

} // namespace detail
} // namespace skein


// ======== skein/core/detail/available_cores.ipp
// The bodies of core/available_cores.hpp.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>

#include <sched.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein {

namespace detail {

/// quota / period of one cgroup in microseconds; infinite: no quota, or no such file.
SKEIN_INLINE double cgroup_quota(const std::string& folder) {
    std::string quota;
    double period = 0;
    if (std::ifstream v2(folder + "/cpu.max"); !(v2 >> quota >> period)) {
        std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
        std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    }
    const double part = quota.empty() || quota == "max" ? -1 : std::atof(quota.c_str());
    return part > 0 && period > 0 ? part / period : std::numeric_limits<double>::infinity();
}

SKEIN_INLINE std::vector<std::string> cgroup_folders(const cgroup_files& where,
                                                     std::string_view controller) {
    std::vector<std::string> folders;
    const auto listed = fmt::format(",{},", controller);
    // A line is number:controllers:path; version 2 has one, with no controllers.
    std::ifstream membership(where.membership);
    for (std::string line; std::getline(membership, line);) {
        const auto first = line.find(':'), second = line.find(':', first + 1);
        if (first == line.npos || second == line.npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (!controllers.empty() && ("," + controllers + ",").find(listed) == line.npos) continue;
        // The folder of version 1 is "cpu" or has the names of all its controllers. Every group above
        // has its say; inside a container the path may be the host's, which is not there.
        for (const auto& root : {where.root, where.root + "/" + controllers,
                                 fmt::format("{}/{}", where.root, controller)}) {
            std::string path = line.substr(second + 1);
            while (true) {
                folders.push_back(root + path);
                const auto slash = path.rfind('/');
                if (slash == path.npos) break;
                path.resize(slash);
            }
        }
    }
    return folders;
}

SKEIN_INLINE int cgroup_cores(const cgroup_files& where) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& folder : cgroup_folders(where, "cpu"))
        least = std::min(least, cgroup_quota(folder));
    if (!std::isfinite(least)) return 0;
    return std::max(1, static_cast<int>(std::ceil(std::min(least, 1e6))));
}

} // namespace detail

SKEIN_INLINE int available_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    int cores = ::sched_getaffinity(0, sizeof set, &set) == 0
                    ? CPU_COUNT(&set)
                    : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)); // more than 1,024
    cores = std::max(1, cores);
    const int quota = detail::cgroup_cores({});
    return quota > 0 ? std::min(cores, quota) : cores;
}

} // namespace skein

// ======== skein/core/available_memory.hpp
// How much memory this process may use, which in a container is less than the machine has.


#include <cstdint>
#include <string>

namespace skein {

/// The bytes of the machine's memory, and no more than the limits of the process's cgroups (docker
/// --memory, Kubernetes limits), used or not; 0: nobody tells. Reads files: ask once.
[[nodiscard]] std::uint64_t available_memory();

namespace detail {

/// The least limit in bytes, of version 1 or 2; 0: there is none.
[[nodiscard]] std::uint64_t cgroup_memory(const cgroup_files& where);
/// MemTotal of a file like /proc/meminfo in bytes; 0: it does not say.
[[nodiscard]] std::uint64_t total_memory(const std::string& meminfo);
/// The lesser of both.
[[nodiscard]] std::uint64_t available_memory(const cgroup_files& where, const std::string& meminfo);

} // namespace detail
} // namespace skein


// ======== skein/core/detail/available_memory.ipp
// The bodies of core/available_memory.hpp.

#include <algorithm>
#include <fstream>
#include <limits>

namespace skein {

namespace detail {

SKEIN_INLINE std::uint64_t cgroup_memory(const cgroup_files& where) {
    constexpr auto none = std::numeric_limits<std::uint64_t>::max();
    // Version 1 has no word for "no limit": it says the greatest multiple of a page.
    constexpr auto absurd = std::uint64_t{1} << 62;
    std::uint64_t least = none;
    for (const auto& folder : cgroup_folders(where, "memory")) {
        // A process above memory.high is held up until it is hardly moving: that is a limit, too.
        for (const char* file : {"/memory.max", "/memory.high", "/memory.limit_in_bytes"}) {
            std::uint64_t bytes = 0;
            if (std::ifstream(folder + file) >> bytes && bytes < absurd)
                least = std::min(least, bytes); // "max" is no number
        }
    }
    return least == none ? 0 : std::max<std::uint64_t>(least, 1);
}

SKEIN_INLINE std::uint64_t total_memory(const std::string& meminfo) {
    std::ifstream file(meminfo);
    for (std::string name, line; file >> name; std::getline(file, line)) {
        std::uint64_t kilobytes = 0;
        if (name == "MemTotal:" && file >> kilobytes) return kilobytes << 10;
    }
    return 0;
}

SKEIN_INLINE std::uint64_t available_memory(const cgroup_files& where, const std::string& meminfo) {
    const std::uint64_t machine = total_memory(meminfo), group = cgroup_memory(where);
    if (machine == 0 || group == 0) return std::max(machine, group);
    return std::min(machine, group);
}

} // namespace detail

SKEIN_INLINE std::uint64_t available_memory() {
    return detail::available_memory({}, "/proc/meminfo");
}

} // namespace skein

// ======== skein/core/this_process.hpp
// What the kernel says of this process and of the host it runs on.
//
//     auto argv = skein::own_arguments();       // {"./train", "--steps", "100"}

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace skein {

/// All of a small file, as those under /proc are; what can be read of it if something is wrong.
[[nodiscard]] inline std::string read_small_file(const char* path) {
    std::string all;
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return all;
    char part[4096];
    for (;;) {
        const auto n = ::read(fd, part, sizeof part);
        if (n > 0) all.append(part, static_cast<std::size_t>(n));
        if (n == 0 || (n < 0 && errno != EINTR)) break;
    }
    ::close(fd);
    return all;
}

/// argv of this process, as the kernel keeps it.
[[nodiscard]] inline std::vector<std::string> own_arguments() {
    const auto all = read_small_file("/proc/self/cmdline");
    std::vector<std::string> argv;
    for (std::size_t at = 0; at < all.size();) {
        const auto end = std::min(all.find('\0', at), all.size());
        argv.push_back(all.substr(at, end - at));
        at = end + 1;
    }
    return argv;
}

/// Another text after every start of the host, the same for all processes and containers on it.
[[nodiscard]] inline std::string boot_id() {
    auto id = read_small_file("/proc/sys/kernel/random/boot_id");
    return id.substr(0, id.find('\n'));
}

} // namespace skein

// ======== skein/net/socket_pair.hpp
// Two connected sockets for two processes of one host: nothing listens, nobody else can connect.
//
//     auto pair = net::make_socket_pair();
//     start_child_with(pair.theirs.get());                     // it is close-on-exec here
//     auto stream = net::adopt_unix_stream(loop, pair.ours.release(), "the child");


#include <memory>
#include <utility>

namespace skein::net {

/// Both ends of a connected stream; close-on-exec.
struct socket_pair {
    unique_fd ours, theirs;
};

///   errors  io: the process has no descriptors left
[[nodiscard]] socket_pair make_socket_pair();

/// Puts an end behind the last byte that has arrived: what the other side has sent can still be read,
/// then the stream ends, whichever process still holds the other end. False: it is no socket.
bool end_input(int socket) noexcept;

/// A network of one stream that is connected already: the first connect() gives it, whatever the address.
class connected_network final : public network {
public:
    explicit connected_network(std::unique_ptr<stream> s) noexcept : stream_(std::move(s)) {}
    task<std::unique_ptr<stream>> connect(address to) override;
    ///   errors  not_supported
    std::unique_ptr<listener> listen(address at) override;

private:
    std::unique_ptr<stream> stream_;
};

} // namespace skein::net


// ======== skein/net/detail/socket_pair.ipp
// The bodies of net/socket_pair.hpp.


#include <cerrno>
#include <cstring>

#include <sys/socket.h>

#include <fmt/format.h>

namespace skein::net {

SKEIN_INLINE socket_pair make_socket_pair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        throw error(errc::io, fmt::format("socketpair failed: {}", std::strerror(errno)))
            .with_hint(errno == EMFILE ? "raise the limit of open files: ulimit -n" : "");
    return {unique_fd(ends[0]), unique_fd(ends[1])};
}

SKEIN_INLINE bool end_input(int socket) noexcept { return ::shutdown(socket, SHUT_RD) == 0; }

SKEIN_INLINE task<std::unique_ptr<stream>> connected_network::connect(address) {
    if (!stream_) throw error(errc::closed, "the inherited stream has been taken already");
    co_return std::move(stream_);
}

SKEIN_INLINE std::unique_ptr<listener> connected_network::listen(address) {
    throw error(errc::not_supported, "not supported: listening on an inherited stream");
}

} // namespace skein::net

// ======== skein/rt/detail/children.hpp
// What tests look at of rt/detail/children.ipp.

#include <cstdint>

namespace skein::rt {

struct process_usage;

namespace detail {

/// What Linux tells of a process; zeros if there is no such process.
[[nodiscard]] process_usage usage_of(std::int64_t pid);

} // namespace detail
} // namespace skein::rt

// ======== skein/rt/detail/starter.hpp
// A thread that starts processes, so that no loop waits for a file system.


#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace skein::rt::detail {

/// One start; shared by the task that waits for it and the thread that does it.
struct start_order {
    start_order(process_options how, loop& starter) : attempt(std::move(how)), home(starter) {}

    start_attempt attempt;
    loop& home;                  ///< where `done` is set: waits until then
    std::optional<error> failed; ///< these two: the thread's, until done
    child_process started;
    event done;
};

/// Starts processes one after the other. Linux ends a child with the thread that started it: this thread
/// lives as long as anybody who shares it.
class starter {
public:
    ///   errors  io: no thread
    starter();
    starter(const starter&) = delete;
    starter& operator=(const starter&) = delete;
    /// Ends the thread; all orders must be done or taken back.
    ~starter();

    void submit(std::shared_ptr<start_order> order);
    /// True: it was waiting for its turn and never gets one; `done` will not be set.
    [[nodiscard]] bool take_back(const start_order& order);

private:
    void main();

    std::mutex mutex_; // guards waiting_ and stopping_
    std::condition_variable wake_;
    std::deque<std::shared_ptr<start_order>> waiting_;
    bool stopping_ = false;
    std::thread thread_;
};

/// Starts a process on that thread; the loop goes on meanwhile.
///   errors  those of child_process::spawn; cancelled: nothing of it is left
[[nodiscard]] task<child_process> start_process(std::shared_ptr<starter> by, process_options how);

} // namespace skein::rt::detail

// ======== skein/rt/process_wait.hpp
// Waiting for a child process on a real loop, without a thread and without SIGCHLD.
//
//     auto ended = rt::wait(loop, child);
//     rt::exit_status status = co_await ended;


namespace skein::net {
class real_loop;
}

namespace skein::rt {

/// Suspends until the child has ended; reaps it.
///   child   must outlive the task
///   errors  cancelled: the child is not touched, wait again later
[[nodiscard]] task<exit_status> wait(net::real_loop& on, child_process& child);

} // namespace skein::rt


// ======== skein/rt/detail/process_wait.ipp
// The body of rt/process_wait.hpp.


namespace skein::rt {

SKEIN_INLINE task<exit_status> wait(net::real_loop& on, child_process& child) {
    while (!child.try_wait()) {
        auto ended = net::wait_readable(on, child.pidfd());
        co_await ended;
    }
    co_return *child.status();
}

} // namespace skein::rt


// ======== skein/rt/detail/children.ipp, continued
#include <algorithm>
#include <csignal>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE child::~child() = default;
SKEIN_INLINE children::~children() = default;

namespace detail {

SKEIN_INLINE process_usage usage_of(std::int64_t pid) {
    process_usage now;
    std::uint64_t pages = 0;
    std::ifstream(fmt::format("/proc/{}/statm", pid)) >> pages >> pages; // the second: resident
    now.resident_bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    std::string line;
    std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), line);
    // The second field is the program's name in brackets, with whatever is in it; user and system time, in
    // ticks, are the 14th and the 15th.
    std::istringstream fields(line.substr(std::min(line.rfind(')') + 1, line.size())));
    std::string skipped;
    for (int field = 3; field < 14; ++field) fields >> skipped;
    std::int64_t user = 0, system = 0;
    fields >> user >> system;
    now.cpu_time = duration(std::chrono::seconds(user + system)) / ::sysconf(_SC_CLK_TCK);
    return now;
}

/// A process of this host.
class local_child final : public child {
public:
    local_child(net::real_loop& on, std::shared_ptr<starter> by, std::string name,
                child_process process, unique_fd socket)
        : loop_(on), starter_(std::move(by)), name_(std::move(name)), process_(std::move(process)) {
        if (!socket) return;
        socket_ = unique_fd(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
        stream_ = net::adopt_unix_stream(on, socket.release(), name_);
    }

    const std::string& name() const noexcept override { return name_; }
    std::int64_t pid() const noexcept override { return process_.pid(); }
    bool running() const noexcept override { return process_.running(); }

    task<child_end> ended() override {
        auto waited = wait(loop_, process_);
        const auto status = co_await waited;
        if (!end_) {
            end_ = child_end{status, process_.last_words()};
            // A child that it left behind may hold the other end: an end behind the last byte.
            if (socket_) net::end_input(socket_.get());
            socket_.reset();
        }
        co_return *end_;
    }

    void signal(int number) noexcept override { process_.kill(number); }
    void kill() noexcept override { process_.kill_group(SIGKILL); }
    process_usage usage() override {
        return process_.running() ? usage_of(process_.pid()) : process_usage{};
    }
    std::unique_ptr<net::stream> take_stream() override { return std::move(stream_); }

private:
    net::real_loop& loop_;
    const std::shared_ptr<starter> starter_; // the process dies with its thread
    std::string name_;
    child_process process_;
    unique_fd socket_; // once more
    std::unique_ptr<net::stream> stream_;
    std::optional<child_end> end_;
};

SKEIN_INLINE void check_boot_size(const child_options& how) {
    if (how.message.size() <= most_boot_bytes) return;
    throw error(errc::too_large,
                fmt::format("the boot message of {} has {} bytes, at most {} are allowed", how.name,
                            how.message.size(), most_boot_bytes));
}

/// The read end of a pipe with the message in it. All of it is there before the child starts, so the
/// child never waits, and its end of file needs nobody.
SKEIN_INLINE unique_fd boot_pipe(const child_options& how) {
    check_boot_size(how);
    boot_message text;
    text.role = how.role;
    text.name = how.name;
    text.message = how.message;
    if (how.socket) text.socket = socket_file;
    if (how.memory) text.memory = memory_file;
    const auto bytes = wire::encode(text);
    auto [read_end, write_end] = make_pipe();
    if (::write(write_end.get(), bytes.data(), bytes.size()) != ssize_t(bytes.size()))
        throw error(errc::io, fmt::format("the boot message of {} does not fit a pipe", how.name));
    return std::move(read_end);
}

} // namespace detail

SKEIN_INLINE task<std::unique_ptr<child>> local_children::start(child_options how) {
    process_options plan;
    plan.executable = how.executable;
    plan.cwd = how.cwd;
    plan.argv = how.argv.empty() ? own_arguments() : how.argv;
    if (plan.argv.empty()) plan.argv.emplace_back("skein");
    plan.env = how.env;
    plan.own_group = true;
    const auto message = detail::boot_pipe(how);
    plan.fds.emplace_back(message.get(), detail::boot_file);
    plan.env.emplace_back(boot_variable, std::to_string(detail::boot_file));
    net::socket_pair link;
    if (how.socket) {
        link = net::make_socket_pair();
        plan.fds.emplace_back(link.theirs.get(), detail::socket_file);
    }
    if (how.memory) plan.fds.emplace_back(how.memory.fd(), detail::memory_file);
    if (!starter_) starter_ = std::make_shared<detail::starter>();
    const auto by = starter_;
    auto& home = loop_;
    auto starting = detail::start_process(by, std::move(plan));
    auto process = co_await starting;
    co_return std::make_unique<detail::local_child>(home, by, std::move(how.name),
                                                    std::move(process), std::move(link.ours));
}

SKEIN_INLINE host_resources local_children::resources() {
    return {available_cores(), available_memory()};
}

SKEIN_INLINE task<child_end> stop(child& which, duration before_asking, duration before_killing) {
    for (const bool insist : {false, true}) {
        auto in_time = with_timeout(which.ended(), insist ? before_killing : before_asking);
        auto asked = as_result(std::move(in_time));
        auto end = co_await asked;
        if (end) co_return std::move(*end);
        if (end.error().code() != errc::timeout) throw end.error();
        if (insist)
            which.kill();
        else
            which.signal(SIGTERM);
    }
    auto gone = which.ended();
    co_return co_await gone;
}

SKEIN_INLINE std::optional<duration> restart_policy::failed(const error& why) noexcept {
    ++failures_;
    if (failures_ > rules_.most || rules_.is_lasting(why.code())) return std::nullopt;
    duration pause = rules_.first_pause;
    for (int i = 1; i < failures_ && pause < rules_.longest_pause; ++i) pause *= rules_.factor;
    return std::min(pause, rules_.longest_pause);
}

} // namespace skein::rt

// ======== skein/rt/detail/starter.ipp
// The bodies of rt/detail/starter.hpp.


#include <algorithm>
#include <csignal>
#include <system_error>

#include <pthread.h>

namespace skein::rt::detail {

SKEIN_INLINE starter::starter() {
    // Signals are for the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::optional<error> failed;
    try {
        thread_ = std::thread([this] { main(); });
    } catch (const std::system_error& e) {
        failed = error(errc::io, "cannot start a thread to start processes").with_cause(e.what());
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (failed) throw *failed;
}

SKEIN_INLINE starter::~starter() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

SKEIN_INLINE void starter::submit(std::shared_ptr<start_order> order) {
    {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(std::move(order));
    }
    wake_.notify_one();
}

SKEIN_INLINE bool starter::take_back(const start_order& order) {
    const std::lock_guard lock(mutex_);
    return std::erase_if(waiting_, [&](const auto& w) { return w.get() == &order; }) != 0;
}

SKEIN_INLINE void starter::main() {
    ::pthread_setname_np(::pthread_self(), "skein-starter");
    while (true) {
        std::shared_ptr<start_order> order;
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
            if (waiting_.empty()) return;
            order = std::move(waiting_.front());
            waiting_.pop_front();
        }
        try {
            order->started = order->attempt.run();
        } catch (...) {
            order->failed = to_error(std::current_exception());
        }
        auto& home = order->home;
        home.post_from_any_thread([order = std::move(order)] { order->done.set(); });
    }
}

SKEIN_INLINE task<void> until_done(start_order* order) {
    auto done = order->done.wait();
    co_await done;
}

SKEIN_INLINE task<child_process> start_process(std::shared_ptr<starter> by, process_options how) {
    const auto order = std::make_shared<start_order>(std::move(how), loop::current());
    by->submit(order);
    auto waiting = as_result(until_done(order.get()));
    const auto waited = co_await waiting;
    if (!waited) { // cancelled
        if (by->take_back(*order)) throw waited.error();
        order->attempt.give_up();
        auto ending = shield(until_done(order.get()));
        co_await ending;
        order->started = {}; // it may have been too late: then this kills it
        throw waited.error();
    }
    if (order->failed) throw *order->failed;
    co_return std::move(order->started);
}

} // namespace skein::rt::detail


// ======== skein/cluster/detail/supervisor.ipp, continued
#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE task<void> wait_until_set(event* e) {
    auto waited = e->wait();
    co_await waited;
}

/// One job of N ranks on this host.
class job {
public:
    job(net::real_loop& loop, supervisor_options options)
        : options_(std::move(options)), loop_(loop), network_(loop), children_(loop),
          signals_(second_signal::is_counted) {}

    task<supervisor_outcome> run() {
        scope watching;
        watching.spawn(watch_signals());
        std::exception_ptr failure;
        try {
            auto attempts = run_attempts();
            co_await attempts;
        } catch (...) {
            failure = std::current_exception();
        }
        watching.cancel();
        auto joined = shield(watching.join());
        co_await joined;
        if (failure) std::rethrow_exception(failure);
        outcome_.stop_signal = stop_signal_;
        co_return outcome_;
    }

private:
    /// For a last word that is on its way, or for the kernel to clear a dead process away.
    static constexpr auto moment = time_constants::lan().last_word;

    struct rank_process {
        std::unique_ptr<rt::child> process;
        bool running = false;
        bool killed_by_us = false;
        std::optional<error> why; ///< of a bad end
    };
    struct attempt {
        std::unique_ptr<group_server> server;
        std::vector<rank_process> ranks;
        std::optional<group_outcome> group; ///< how the group ended
        event changed;                      ///< a rank or the group has ended

        [[nodiscard]] bool any_running() const {
            for (const auto& r : ranks) {
                if (r.running) return true;
            }
            return false;
        }
    };

    task<void> run_attempts() {
        rt::restart_rules rules;
        rules.most = options_.max_failures;
        rules.first_pause = options_.backoff;
        rt::restart_policy restarts(rules);
        for (int number = 0;; ++number) {
            auto attempted = run_attempt(number);
            outcome_.failure = co_await attempted;
            auto& failure = outcome_.failure;
            if (!failure || stop_signal_ != 0 || lasting_ || is_lasting(failure->code())) co_return;
            const auto pause = restarts.failed(*failure);
            if (!pause) {
                if (number > 0) {
                    auto hint =
                        fmt::format("the job was restarted {} time{} already; --resume goes on "
                                    "from its last checkpoint, if it has one",
                                    number, number == 1 ? "" : "s");
                    if (!failure->hint().empty()) hint = failure->hint() + "; " + hint;
                    failure->with_hint(std::move(hint));
                }
                co_return;
            }
            ++outcome_.restarts;
            if (options_.on_restart)
                options_.on_restart(*failure, outcome_.restarts, options_.max_failures);
            auto pausing = as_result(with_timeout(wait_until_set(&stop_), *pause));
            (void)co_await pausing;
            if (stop_signal_ != 0) co_return;
        }
    }

    /// Gives nothing when every rank has left in order.
    task<std::optional<error>> run_attempt(int number) {
        attempt now;
        group_options group;
        group.world_size = options_.workers;
        group.generation = number;
        group.job = job_id_;
        group.secret = net::token::generate();
        group.join_deadline = options_.join_deadline;
        group.alive = options_.alive;
        const auto name =
            fmt::format("@skein-{}-{}-{:016x}", ::getpid(), number, system_random().next());
        now.server =
            std::make_unique<group_server>(network_, net::address::abstract_unix(name), group);
        const auto at = now.server->local();

        scope watching;
        watching.spawn(watch_group(&now));
        std::optional<error> failed;
        current_ = &now;
        now.ranks.resize(static_cast<std::size_t>(options_.workers));
        for (int r = 0; r < options_.workers && !failed; ++r) {
            try {
                if (stop_signal_ != 0)
                    throw error(errc::cancelled, "stopped while the workers were starting");
                auto starting = start_rank(&now, r, group, at);
                co_await starting;
                watching.spawn(watch_rank(&now, r));
            } catch (const error& e) {
                failed = e;
                now.server->abort(e);
            }
            co_await yield(); // early ranks knock already, a person may press Ctrl-C
        }
        auto over = until_over(&now);
        co_await over;
        current_ = nullptr;
        auto joined = watching.join();
        co_await joined;
        if (failed) co_return failed;
        co_return verdict(now);
    }

    /// A rank is told its place and the group's secret through a pipe: nothing of it is in its
    /// environment, so nothing of it reaches what it starts.
    task<void> start_rank(attempt* now, int rank, group_options group, net::address at) {
        const std::map<std::string, std::string> mine{
            {"SKEIN_RANK", std::to_string(rank)},
            {"SKEIN_WORLD_SIZE", std::to_string(group.world_size)},
            {"SKEIN_LOCAL_RANK", std::to_string(rank)},
            {"SKEIN_LOCAL_SIZE", std::to_string(group.world_size)},
            {"SKEIN_ATTEMPT", std::to_string(group.generation)},
            {"SKEIN_JOB_ID", group.job},
            {group_variable, net::to_string(at)},
            {token_variable, group.secret.to_hex()}};
        rt::child_options how;
        how.role = rank_role;
        how.name = fmt::format("worker {}", rank);
        how.message = wire::encode(mine);
        how.socket = false;
        how.executable = options_.executable;
        how.argv = options_.argv;
        how.env = options_.env;
        auto starting = children_.start(std::move(how));
        auto& place = now->ranks[static_cast<std::size_t>(rank)];
        place.process = co_await starting;
        place.running = true;
    }

    task<void> watch_group(attempt* now) {
        group_outcome how;
        try {
            auto run = now->server->run();
            how = co_await run;
        } catch (const error& e) {
            how.failure = e;
        }
        now->group = std::move(how);
        now->changed.set();
    }

    task<void> watch_rank(attempt* now, int rank) {
        auto& self = now->ranks[static_cast<std::size_t>(rank)];
        auto ended = self.process->ended();
        const auto end = co_await ended;
        const auto& status = end.status;
        // What a program that was stopped in order returns.
        const bool as_asked = stop_signal_ != 0 && status.code() == 128 + stop_signal_;
        if (!status.success() && !as_asked && !self.killed_by_us) {
            self.why =
                error(errc::worker_lost, fmt::format("worker {} (pid {}) {}", rank,
                                                     self.process->pid(), status.describe()));
            if (!end.last_words.empty()) self.why->with_cause(end.last_words);
            // Refused before it joined, output without a reader, a limit on files: so again next time.
            lasting_ = lasting_ || status.code() == exit_code::usage ||
                       status.signal() == SIGPIPE || status.signal() == SIGXFSZ;
        }
        // What it said last may still be on its way through the socket: that is the better reason.
        if (!now->group) {
            auto word = as_result(with_timeout(wait_until_set(&now->changed), moment));
            (void)co_await word;
        }
        if (!now->group && !now->server->has_left(rank)) {
            now->server->abort(
                self.why ? *self.why
                         : error(errc::worker_lost,
                                 fmt::format("worker {} exited before the job was done", rank))
                               .with_hint("it must return from launch(), not call exit()"),
                rank);
        }
        self.running = false;
        now->changed.set();
    }

    /// Until the group has ended and all ranks are gone; kills those that outstay their grace.
    task<void> until_over(attempt* now) {
        std::optional<time_point> limit, silent_limit;
        bool has_failed = false;
        while (now->any_running() || !now->group) {
            const auto time = loop::current().now();
            if (!has_failed && now->group && now->group->failure) { // also while they are stopping
                has_failed = true;
                limit = std::min(limit.value_or(time_point::max()), time + options_.crash_grace);
                // A rank that fell silent will not leave; a dead one is reaped within the moment.
                if (!now->group->reported) silent_limit = time + moment;
            }
            if (silent_limit && time >= *silent_limit) {
                silent_limit.reset();
                if (now->group->culprit >= 0)
                    kill(now->ranks[static_cast<std::size_t>(now->group->culprit)]);
            }
            // After a good end the ranks may go on working, as long as nobody asks them to stop.
            if (!limit && stop_signal_ != 0) limit = time + options_.stop_grace;
            if (stop_signal_ != 0 && !told_to_stop_) {
                told_to_stop_ = true;
                for (auto& r : now->ranks) {
                    if (r.running) r.process->signal(stop_signal_);
                }
            }
            now->changed.reset();
            if (kill_now_ || (limit && time >= *limit)) {
                kill_all(*now);
                limit.reset();
                kill_now_ = false;
                if (!now->group)
                    now->server->abort(error(errc::timeout, "the ranks did not stop in time"));
            }
            const auto until = std::min(silent_limit.value_or(time_point::max()),
                                        limit.value_or(time + std::chrono::hours(1)));
            auto change = as_result(with_deadline(wait_until_set(&now->changed), until));
            (void)co_await change;
        }
        told_to_stop_ = false;
    }
    static void kill_all(attempt& now) {
        for (auto& r : now.ranks) kill(r);
    }
    static void kill(rank_process& r) {
        if (!r.running) return;
        r.killed_by_us = true;
        r.process->kill();
    }

    /// The best account of what went wrong.
    [[nodiscard]] static std::optional<error> verdict(const attempt& now) {
        const auto& group = *now.group;
        if (!group.failure) {
            for (const auto& r : now.ranks) {
                if (r.why) return r.why; // it failed after its training was done
            }
            return std::nullopt;
        }
        if (!group.reported && group.culprit >= 0) {
            const auto& r = now.ranks[static_cast<std::size_t>(group.culprit)];
            if (r.why) return r.why;
        }
        return group.failure;
    }

    task<void> watch_signals() {
        for (;;) {
            auto asked = net::wait_readable(loop_, signals_.fd());
            co_await asked;
            char read[16];
            [[maybe_unused]] const auto n = ::read(signals_.fd(), read, sizeof read);
            if (signals_.count() > 1) kill_now_ = true;
            const bool first = stop_signal_ == 0;
            if (first) stop_signal_ = signals_.which();
            if (first && options_.on_stop) options_.on_stop();
            stop_.set();
            if (current_ != nullptr) current_->changed.set();
        }
    }

    supervisor_options options_;
    net::real_loop& loop_;
    std::string job_id_ = fmt::format("job-{:016x}", system_random().next());
    net::real_network network_;
    rt::local_children children_;
    stop_signals signals_;
    supervisor_outcome outcome_;
    attempt* current_ = nullptr;
    int stop_signal_ = 0;
    bool told_to_stop_ = false;
    bool kill_now_ = false;
    bool lasting_ = false; ///< a rank ended in a way that would only come again
    event stop_;
};

} // namespace skein::cluster::detail

namespace skein::cluster {

SKEIN_INLINE supervisor_outcome supervise(supervisor_options options) {
    SKEIN_CHECK(options.workers > 0, "a job of {} workers", options.workers);
    net::real_loop loop;
    detail::job work(loop, std::move(options));
    return loop.run(work.run());
}

} // namespace skein::cluster

// ======== skein/core.hpp
// Every public header of the layer core.
// Written by scripts/check_mirror.py --write.


// ======== skein/core/all.hpp
// all: run several tasks at once and wait for all of them.
//
//     auto both = all(load(1), load(2));
//     auto [a, b] = co_await std::move(both);


#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace skein {
namespace detail {

/// void has no values: all() gives std::monostate for it.
template <class T>
using value_or_monostate = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

template <class T>
task<void> keep_value(task<T> work, std::optional<value_or_monostate<T>>* out) {
    if constexpr (std::is_void_v<T>) {
        co_await work;
        out->emplace();
    } else {
        out->emplace(co_await work);
    }
}

} // namespace detail

/// Runs all tasks concurrently; gives their values in order (std::monostate for void). The first error
/// cancels the others, and is rethrown when all have ended. Resumed by the loop.
template <class... Ts>
    requires(sizeof...(Ts) > 0)
[[nodiscard]] task<std::tuple<detail::value_or_monostate<Ts>...>> all(task<Ts>... work) {
    std::tuple<std::optional<detail::value_or_monostate<Ts>>...> slots;
    scope children;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        (children.spawn(detail::keep_value<Ts>(std::move(work), &std::get<I>(slots))), ...);
    }(std::index_sequence_for<Ts...>{});
    auto joined = children.join();
    try {
        co_await joined;
    } catch (const error&) { // cancelled, but values that are all there are delivered
        if (!std::apply([](const auto&... slot) { return (slot.has_value() && ...); }, slots))
            throw;
    }
    co_return std::apply(
        [](auto&... slot) {
            return std::tuple<detail::value_or_monostate<Ts>...>(std::move(*slot)...);
        },
        slots);
}

/// The same for things that as_task turns into tasks (refs).
template <task_like... As>
    requires(sizeof...(As) > 0 &&
             !(requires { typename std::remove_cvref_t<As>::promise_type; } && ...))
[[nodiscard]] auto all(As&&... work) {
    return all(as_task(std::forward<As>(work))...);
}

/// The same for any number of one type; void gives a task<void>.
template <class T>
[[nodiscard]] auto all(std::vector<task<T>> work) -> task<
    std::conditional_t<std::is_void_v<T>, void, std::vector<detail::value_or_monostate<T>>>> {
    std::vector<std::optional<detail::value_or_monostate<T>>> slots(work.size());
    scope children;
    for (std::size_t i = 0; i < work.size(); ++i) {
        children.spawn(detail::keep_value<T>(std::move(work[i]), &slots[i]));
    }
    auto joined = children.join();
    try {
        co_await joined;
    } catch (const error&) {
        if (!std::all_of(slots.begin(), slots.end(), [](const auto& s) { return s.has_value(); }))
            throw;
    }
    if constexpr (!std::is_void_v<T>) {
        std::vector<T> values;
        values.reserve(slots.size());
        for (auto& slot : slots) values.push_back(std::move(*slot));
        co_return values;
    }
}

/// The same for a vector of refs.
template <task_like A>
    requires(!requires { typename A::promise_type; })
[[nodiscard]] auto all(std::vector<A> work) {
    std::vector<decltype(as_task(std::declval<A>()))> tasks;
    tasks.reserve(work.size());
    for (auto& w : work) tasks.push_back(as_task(std::move(w)));
    return all(std::move(tasks));
}

} // namespace skein

// ======== skein/core/any.hpp
// any: run several tasks at once and take the first that succeeds.
//
// Errors are only the answer when all have failed; then the first one is rethrown.


// ======== skein/core/race.hpp
// race: run several tasks at once and take the first that ends, well or badly.
//
//     auto first = race(primary(), backup());      // finished<T>{index, value}


#include <cstddef>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace skein {

/// Which task it was, and its value (std::monostate for void).
template <class T>
struct finished {
    std::size_t index = 0;
    detail::value_or_monostate<T> value;
};

namespace detail {

template <class T>
struct race_state {
    std::optional<finished<T>> winner;
    std::exception_ptr failure;
    bool over = false;
    scope children;
};

/// One runner. error_ends: an error ends the race (race), else only this runner (any).
template <class T>
task<void> run_in_race(task<T> work, std::size_t index, race_state<T>* race, bool error_ends) {
    std::exception_ptr failure;
    std::optional<value_or_monostate<T>> value;
    try {
        auto kept = keep_value<T>(std::move(work), &value);
        co_await kept;
    } catch (...) {
        failure = std::current_exception();
    }
    if (race->over) co_return;
    if (failure) {
        if (!race->failure) race->failure = failure;
        if (!error_ends) co_return;
    } else {
        race->winner.emplace(finished<T>{index, std::move(*value)});
    }
    race->over = true;
    race->children.cancel();
}

template <class T>
task<finished<T>> hold_race(std::vector<task<T>> work, bool error_ends) {
    if (work.empty()) throw error(errc::invalid_argument, "a race of no tasks");
    race_state<T> race;
    for (std::size_t i = 0; i < work.size(); ++i) {
        race.children.spawn(run_in_race<T>(std::move(work[i]), i, &race, error_ends));
    }
    auto joined = race.children.join();
    try {
        co_await joined;
    } catch (const error&) { // cancelled, but a value that is there is delivered
        if (!race.winner) throw;
    }
    if (race.winner) co_return std::move(*race.winner);
    std::rethrow_exception(race.failure);
}

template <class T, class... Rest>
std::vector<task<T>> to_vector(task<T> first, task<Rest>... rest) {
    std::vector<task<T>> tasks;
    tasks.reserve(1 + sizeof...(rest));
    tasks.push_back(std::move(first));
    (tasks.push_back(std::move(rest)), ...);
    return tasks;
}

} // namespace detail

/// Gives the first task that ends; its error is rethrown. The others are cancelled and waited for.
template <class T>
[[nodiscard]] task<finished<T>> race(std::vector<task<T>> work) {
    return detail::hold_race<T>(std::move(work), true);
}
template <class T, class... Rest>
    requires(std::same_as<T, Rest> && ...)
[[nodiscard]] task<finished<T>> race(task<T> first, task<Rest>... rest) {
    return race(detail::to_vector(std::move(first), std::move(rest)...));
}
/// The same for refs.
template <task_like A, task_like... As>
    requires(
        !requires { typename std::remove_cvref_t<A>::promise_type; } &&
        !requires { typename std::remove_cvref_t<A>::allocator_type; })
[[nodiscard]] auto race(A&& first, As&&... rest) {
    return race(as_task(std::forward<A>(first)), as_task(std::forward<As>(rest))...);
}

} // namespace skein


// ======== skein/core/any.hpp, continued
#include <utility>
#include <vector>

namespace skein {

/// Gives the first task that ends without an error; the others are cancelled and waited for.
template <class T>
[[nodiscard]] task<finished<T>> any(std::vector<task<T>> work) {
    return detail::hold_race<T>(std::move(work), false);
}
template <class T, class... Rest>
    requires(std::same_as<T, Rest> && ...)
[[nodiscard]] task<finished<T>> any(task<T> first, task<Rest>... rest) {
    return any(detail::to_vector(std::move(first), std::move(rest)...));
}
/// The same for refs.
template <task_like A, task_like... As>
    requires(
        !requires { typename std::remove_cvref_t<A>::promise_type; } &&
        !requires { typename std::remove_cvref_t<A>::allocator_type; })
[[nodiscard]] auto any(A&& first, As&&... rest) {
    return any(as_task(std::forward<A>(first)), as_task(std::forward<As>(rest))...);
}

} // namespace skein

// ======== skein/core/as_completed.hpp
// as_completed: outcomes in the order in which tasks end.
//
//     auto results = as_completed(std::move(tasks));
//     while (auto done = co_await results.next()) use(done->index, done->value);
//
// Leaving early is fine, by break or by an exception: the tasks that still run are cancelled, and the
// loop waits for their end. They end after the stream then: they must not refer to what ends with its
// reader (refs do not). co_await close() waits here and now.


// ======== skein/core/channel.hpp
// channel<T>: a bounded queue between tasks of one loop. Values come out in the order they went in, each
// to exactly one receiver; a full channel makes its senders wait (back-pressure). Capacity 0 is a
// rendezvous: a send ends when its value is received.
//
//     while (auto item = co_await jobs.receive()) use(*item);


#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

namespace skein {

/// A queue of at most `capacity` values between tasks of one loop. Neither copyable nor movable.
template <class T>
class channel {
public:
    explicit channel(std::size_t capacity) noexcept : capacity_(capacity) {}
    channel(const channel&) = delete;
    channel& operator=(const channel&) = delete;

    class send_awaiter : public waiter {
    public:
        send_awaiter(channel& c, T value) : channel_(c), value_(std::move(value)) {}
        bool await_ready() {
            if (channel_.closed_) return true;
            sent_ = channel_.offer(value_);
            return sent_;
        }
        template <detail::promise_with_context Promise>
        bool await_suspend(std::coroutine_handle<Promise> h) {
            if (!arm(h)) return false;
            channel_.senders_.push_back(*this);
            return true;
        }
        void await_resume() const {
            if (sent_) return;
            throw_if_cancelled();
            throw error(errc::closed, "send on a closed channel");
        }

    private:
        friend class channel;
        channel& channel_;
        T value_;
        bool sent_ = false;
    };

    class receive_awaiter : public waiter {
    public:
        explicit receive_awaiter(channel& c) noexcept : channel_(c) {}
        bool await_ready() {
            value_ = channel_.try_receive();
            return value_.has_value() || channel_.closed_;
        }
        template <detail::promise_with_context Promise>
        bool await_suspend(std::coroutine_handle<Promise> h) {
            if (!arm(h)) return false;
            channel_.receivers_.push_back(*this);
            return true;
        }
        std::optional<T> await_resume() {
            if (!value_) throw_if_cancelled();
            return std::move(value_);
        }

    private:
        friend class channel;
        channel& channel_;
        std::optional<T> value_;
    };

    /// Suspends while the channel is full; resumed by the loop. Throws closed, or cancelled (then the
    /// value was not sent).
    [[nodiscard]] send_awaiter send(T value) { return send_awaiter(*this, std::move(value)); }
    /// Suspends until there is a value; nothing when the channel is closed and empty. Throws cancelled;
    /// then no value is taken.
    [[nodiscard]] receive_awaiter receive() noexcept { return receive_awaiter(*this); }

    /// Sends if there is room; false if not, or if closed (value is then unchanged).
    [[nodiscard]] bool try_send(T& value) { return !closed_ && offer(value); }
    [[nodiscard]] bool try_send(T&& value) { return !closed_ && offer(value); }

    /// Takes a value if there is one.
    [[nodiscard]] std::optional<T> try_receive() {
        std::optional<T> out;
        if (!queue_.empty()) {
            out.emplace(std::move(queue_.front()));
            queue_.pop_front();
            if (!senders_.empty()) queue_.push_back(take_from_sender());
        } else if (!senders_.empty()) {
            out.emplace(take_from_sender());
        }
        return out;
    }

    /// No more sends: those that wait throw closed, receivers drain what is queued and then get nothing.
    void close() noexcept {
        closed_ = true;
        while (!senders_.empty()) senders_.front().wake();
        while (!receivers_.empty()) receivers_.front().wake();
    }
    [[nodiscard]] bool is_closed() const noexcept { return closed_; }
    [[nodiscard]] std::size_t size() const noexcept { return queue_.size(); }

private:
    bool offer(T& value) {
        if (!receivers_.empty()) {
            auto& first = static_cast<receive_awaiter&>(receivers_.front());
            first.value_.emplace(std::move(value));
            first.wake();
            return true;
        }
        if (queue_.size() >= capacity_) return false;
        queue_.push_back(std::move(value));
        return true;
    }
    T take_from_sender() {
        auto& first = static_cast<send_awaiter&>(senders_.front());
        T value = std::move(first.value_);
        first.sent_ = true;
        first.wake();
        return value;
    }

    std::size_t capacity_;
    bool closed_ = false;
    std::deque<T> queue_;
    intrusive_list<waiter, waiter> senders_, receivers_;
};

} // namespace skein


// ======== skein/core/as_completed.hpp, continued
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace skein {

/// One task's end: which it was and its value or error.
template <class T>
struct completed {
    std::size_t index = 0;
    result<T> value;
};

/// The stream of ends. Move-only; runs its tasks from construction on.
template <class T>
class completion_stream {
public:
    explicit completion_stream(std::vector<task<T>> work)
        : state_(std::make_unique<state>(work.size())) {
        for (std::size_t i = 0; i < work.size(); ++i) {
            state_->children.spawn(report(std::move(work[i]), i, state_.get()));
        }
    }

    /// The next that ended, or nothing when all have. Resumed by the loop; throws cancelled.
    [[nodiscard]] task<std::optional<completed<T>>> next() {
        if (state_->left == 0) {
            auto joined = state_->children.join();
            co_await joined;
            co_return std::nullopt;
        }
        auto received = co_await state_->ended.receive();
        --state_->left;
        co_return received;
    }
    /// Cancels what still runs and waits for its end.
    [[nodiscard]] task<void> close() {
        state_->children.cancel();
        auto joined = state_->children.join();
        auto sure = shield(std::move(joined));
        co_await sure;
    }

    completion_stream(completion_stream&&) noexcept = default;
    completion_stream& operator=(completion_stream&& other) noexcept {
        std::swap(state_, other.state_);
        return *this;
    }
    ~completion_stream() {
        if (!state_ || state_->children.size() == 0) return;
        state_->children.cancel();
        loop::current().adopt(clear(std::move(state_)));
    }

private:
    struct state {
        explicit state(std::size_t n) : left(n), ended(n) {}
        std::size_t left;
        channel<completed<T>> ended;
        scope children;
    };
    static task<void> report(task<T> work, std::size_t index, state* s) {
        auto guarded = as_result(std::move(work));
        auto value = co_await guarded;
        (void)s->ended.try_send(completed<T>{index, std::move(value)});
    }

    static task<void> clear(std::unique_ptr<state> left) {
        auto joined = left->children.join();
        co_await joined;
    }

    std::unique_ptr<state> state_;
};

template <class T>
[[nodiscard]] completion_stream<T> as_completed(std::vector<task<T>> work) {
    return completion_stream<T>(std::move(work));
}
/// The same for refs.
template <task_like A>
    requires(!requires { typename A::promise_type; })
[[nodiscard]] auto as_completed(std::vector<A> work) {
    std::vector<decltype(as_task(std::declval<A>()))> tasks;
    tasks.reserve(work.size());
    for (auto& w : work) tasks.push_back(as_task(std::move(w)));
    return as_completed(std::move(tasks));
}

} // namespace skein

// ======== skein/core/clock.hpp
// Time as a parameter, for code that must also run in the simulated world.
//
// now() is for deciding (deadlines, rates); wall() is for people (log lines, file names) and may
// jump. Inside a task prefer loop::now().


#include <chrono>
#include <cstdint>

namespace skein {

/// Where code asks for the time that does not ask its loop. Not owned by those who ask.
class clock {
public:
    virtual ~clock() = default;
    /// Monotonic.
    [[nodiscard]] virtual time_point now() noexcept = 0;
    /// Since 1970-01-01 UTC.
    [[nodiscard]] virtual std::chrono::milliseconds wall() noexcept = 0;
};

/// The machine's clocks.
class system_clock final : public clock {
public:
    [[nodiscard]] time_point now() noexcept override {
        return time_point(std::chrono::duration_cast<duration>(
            std::chrono::steady_clock::now().time_since_epoch()));
    }
    [[nodiscard]] std::chrono::milliseconds wall() noexcept override {
        return std::chrono::duration_cast<std::chrono::milliseconds>(
            std::chrono::system_clock::now().time_since_epoch());
    }
};

/// A clock that stands still until it is moved; for tests.
class manual_clock final : public clock {
public:
    [[nodiscard]] time_point now() noexcept override { return now_; }
    [[nodiscard]] std::chrono::milliseconds wall() noexcept override {
        return wall_start_ +
               std::chrono::duration_cast<std::chrono::milliseconds>(now_.time_since_epoch());
    }
    void advance(duration by) noexcept { now_ += by; }

private:
    time_point now_{};
    std::chrono::milliseconds wall_start_{1'700'000'000'000};
};

} // namespace skein

// ======== skein/core/disk.hpp
// Files as a small interface, so that the code that writes checkpoints runs on a simulated disk too.
//
// Calls block and are meant for a thread that may wait; nothing here throws: a failing disk is a
// result. Durable replacement of a file is: write a temporary, sync it, rename it, sync the folder;
// replace() does just that.
//
//     auto done = disk.replace("run/manifest.json", bytes);
//     if (!done) return done.error();


#include <memory>
#include <string>
#include <vector>

namespace skein {

/// What open() expects of a file, and what may be done with it.
enum class open_mode : std::uint8_t {
    read,       ///< an existing file, for reading
    write,      ///< created or emptied, for writing (and reading back)
    append,     ///< created if missing, kept if not; write position at the end
    create_new, ///< as write, but errc::already_exists if there is one
};

/// An open file. The destructor closes it; close() also tells whether that worked.
class file {
public:
    file() = default;
    file(const file&) = delete;
    file& operator=(const file&) = delete;
    virtual ~file() = default;

    /// Reads at an offset; gives fewer bytes than asked only at the end of the file.
    virtual result<std::size_t> read_at(std::uint64_t offset, mut_byte_span into) = 0;
    /// Writes all bytes at an offset, extending the file where needed; disk_full if they do not fit
    /// (then an unknown part of them is written).
    virtual result<void> write_at(std::uint64_t offset, byte_span bytes) = 0;
    /// Writes all bytes at the end.
    virtual result<void> append(byte_span bytes) = 0;
    virtual result<std::uint64_t> size() = 0;
    /// Cuts or extends (with zeros) to `bytes`.
    virtual result<void> truncate(std::uint64_t bytes) = 0;
    /// Returns when content and size have reached the medium.
    virtual result<void> sync() = 0;
    /// Closes; later calls fail with errc::closed. Closing twice is fine.
    virtual result<void> close() = 0;
};

/// One name in a folder.
struct dir_entry {
    std::string name; ///< without the folder
    bool is_directory = false;
    std::uint64_t bytes = 0; ///< 0 for folders
};

/// A tree of files. Thread-safe as far as different files are concerned.
/// Codes: not_found, already_exists, permission_denied, disk_full, io; texts name the path.
class disk {
public:
    virtual ~disk() = default;

    virtual result<std::unique_ptr<file>> open(const std::string& path, open_mode mode) = 0;
    /// Replaces `to` at once, if it is there. Durable after sync_dir of the folder.
    virtual result<void> rename(const std::string& from, const std::string& to) = 0;
    /// Makes creations, renames and removals inside the folder durable.
    virtual result<void> sync_dir(const std::string& path) = 0;
    /// What is in a folder, ordered by name.
    virtual result<std::vector<dir_entry>> list(const std::string& path) = 0;
    /// Removes a file or an empty folder; not_found if there is none.
    virtual result<void> remove(const std::string& path) = 0;
    /// Creates a folder and those above it; fine if it is there already.
    virtual result<void> make_dirs(const std::string& path) = 0;
    /// Bytes an ordinary user may still write where `path` is.
    virtual result<std::uint64_t> free_space(const std::string& path) = 0;
    /// Size and kind of a path; not_found if there is none.
    virtual result<dir_entry> status(const std::string& path) = 0;

    /// The whole content; too_large if it has more than max_bytes.
    result<byte_buffer> read_whole(const std::string& path, std::uint64_t max_bytes = 1u << 30);
    /// Writes a file from the start and syncs it; a crash may leave a part of it.
    result<void> write_whole(const std::string& path, byte_span bytes);
    /// Replaces a file durably: after a crash either the old or the new content is there.
    result<void> replace(const std::string& path, byte_span bytes);
    /// Removes a folder with all that is in it, or a file; fine if there is nothing. A link is
    /// removed, not what it points at.
    result<void> remove_tree(const std::string& path);
};

/// The folder part of a path ("." for a bare name, "/" for the root).
[[nodiscard]] inline std::string parent_path(const std::string& path) {
    const auto slash = path.find_last_of('/');
    if (slash == std::string::npos) return ".";
    return slash == 0 ? "/" : path.substr(0, slash);
}

/// folder + "/" + name.
[[nodiscard]] inline std::string join_path(const std::string& folder, std::string_view name) {
    std::string path = folder;
    if (!path.empty() && path.back() != '/') path += '/';
    return path.append(name);
}

} // namespace skein


// ======== skein/core/detail/disk.ipp
// What a disk does in several calls: whole files, replacing one, removing a tree.

#include <fmt/core.h>

namespace skein {

SKEIN_INLINE result<byte_buffer> disk::read_whole(const std::string& path,
                                                  std::uint64_t max_bytes) {
    auto opened = open(path, open_mode::read);
    if (!opened) return opened.error();
    file& from = **opened;
    const auto bytes = from.size();
    if (!bytes) return bytes.error();
    if (*bytes > max_bytes)
        return error(errc::too_large, fmt::format("read {}: {} bytes are more than the limit of {}",
                                                  path, *bytes, max_bytes));
    byte_buffer content(static_cast<std::size_t>(*bytes));
    const auto got = from.read_at(0, content);
    if (!got) return got.error();
    content.resize(*got);
    return content;
}

SKEIN_INLINE result<void> disk::write_whole(const std::string& path, byte_span bytes) {
    auto opened = open(path, open_mode::write);
    if (!opened) return opened.error();
    file& to = **opened;
    if (auto done = to.write_at(0, bytes); !done) return done;
    if (auto done = to.sync(); !done) return done;
    return to.close();
}

SKEIN_INLINE result<void> disk::replace(const std::string& path, byte_span bytes) {
    const std::string temporary = path + ".tmp";
    auto done = write_whole(temporary, bytes);
    if (done) done = rename(temporary, path);
    if (!done) {
        (void)remove(temporary);
        return done;
    }
    return sync_dir(parent_path(path));
}

SKEIN_INLINE result<void> disk::remove_tree(const std::string& path) {
    // Files, empty folders and links (status() would follow them) go at once.
    auto removed = remove(path);
    if (removed || removed.error().code() == errc::not_found) return {};
    if (removed.error().code() == errc::permission_denied) return removed;
    const auto what = status(path);
    if (!what || !what->is_directory) return removed;
    const auto inside = list(path);
    if (!inside) return inside.error();
    for (const auto& entry : *inside) {
        const auto child = join_path(path, entry.name);
        if (auto done = entry.is_directory ? remove_tree(child) : remove(child); !done) return done;
    }
    return remove(path);
}

} // namespace skein

// ======== skein/core/mutex.hpp
// mutex: mutual exclusion between tasks of one loop, first come first served. For state that must stay
// consistent across awaits; a thread is never blocked.
//
//     auto held = co_await m.lock();


#include <utility>

namespace skein {

/// A lock that tasks of one loop wait for; no thread is blocked. Neither copyable nor movable.
class mutex {
public:
    mutex() noexcept = default;
    mutex(const mutex&) = delete;
    mutex& operator=(const mutex&) = delete;

    /// Holds the lock until destroyed.
    class [[nodiscard]] guard {
    public:
        explicit guard(mutex& m) noexcept : mutex_(&m) {}
        guard(guard&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)) {}
        guard& operator=(guard&& other) noexcept {
            if (this != &other) {
                unlock();
                mutex_ = std::exchange(other.mutex_, nullptr);
            }
            return *this;
        }
        ~guard() { unlock(); }
        /// Gives the lock to the first who waits; that task is resumed by the loop, not in this call.
        void unlock() noexcept {
            if (auto* m = std::exchange(mutex_, nullptr)) m->release();
        }

    private:
        mutex* mutex_;
    };

    class awaiter : public wait_queue::awaiter {
    public:
        explicit awaiter(mutex& m) noexcept : wait_queue::awaiter(m.waiting_, true), mutex_(m) {}
        bool await_ready() noexcept { return mutex_.try_acquire(); }
        guard await_resume() {
            throw_if_cancelled();
            return guard(mutex_);
        }

    private:
        mutex& mutex_;
    };
    /// Suspends until the lock is this task's; resumed by the loop. Throws cancelled; then the lock is
    /// not taken.
    [[nodiscard]] awaiter lock() noexcept { return awaiter(*this); }
    [[nodiscard]] bool is_locked() const noexcept { return locked_; }

private:
    bool try_acquire() noexcept { return !std::exchange(locked_, true); }
    void release() noexcept {
        if (!waiting_.wake_one()) locked_ = false; // else the lock passes on, still locked
    }

    bool locked_ = false;
    wait_queue waiting_;
};

} // namespace skein

// ======== skein/core/permutation.hpp
// A shuffled order of n items without a table: a keyed bijection on [0, n).
//
// A balanced Feistel network permutes the next larger even power of two; results outside [0, n) are
// walked on until they fall inside (less than four steps on average). Any position is found in O(1)
// and no memory, so each rank computes just its own samples. The function is fixed for ever:
// checkpoints rely on it. Source: Black, Rogaway, "Ciphers with arbitrary finite domains" (2002).
//
//     keyed_permutation order(samples, seed ^ epoch);
//     std::uint64_t sample = order(position);


#include <bit>
#include <cstdint>

namespace skein {

/// One shuffled order of n items, chosen by a key. Small, copyable, without state.
class keyed_permutation {
public:
    /// n: number of items, 1 <= n <= 2^62. Equal (n, key) give the equal order on every machine.
    explicit keyed_permutation(std::uint64_t n, std::uint64_t key) : n_(n) {
        SKEIN_CHECK(n >= 1 && n <= std::uint64_t{1} << 62,
                    "a permutation needs 1 to 2^62 items, not {}", n);
        const int bits = n <= 4 ? 2 : static_cast<int>(std::bit_width(n - 1));
        half_ = (bits + 1) / 2;
        mask_ = (std::uint64_t{1} << half_) - 1;
        for (auto& k : keys_) k = mix(key += 0x9E3779B97F4A7C15u);
    }

    [[nodiscard]] std::uint64_t size() const noexcept { return n_; }

    /// The item at position i.
    [[nodiscard]] std::uint64_t operator()(std::uint64_t i) const {
        SKEIN_CHECK(i < n_, "position {} >= {} items", i, n_);
        do i = forward(i);
        while (i >= n_);
        return i;
    }
    /// The position of an item: inverse((*this)(i)) == i.
    [[nodiscard]] std::uint64_t inverse(std::uint64_t item) const {
        SKEIN_CHECK(item < n_, "item {} >= {} items", item, n_);
        do item = backward(item);
        while (item >= n_);
        return item;
    }

private:
    static constexpr int rounds = 8;

    /// The finaliser of splitmix64.
    static constexpr std::uint64_t mix(std::uint64_t x) noexcept {
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        return x ^ (x >> 31);
    }
    [[nodiscard]] std::uint64_t forward(std::uint64_t x) const noexcept {
        std::uint64_t left = x >> half_, right = x & mask_;
        for (int r = 0; r < rounds; ++r) {
            const std::uint64_t next = left ^ (mix(right ^ keys_[r]) & mask_);
            left = right;
            right = next;
        }
        return left << half_ | right;
    }
    [[nodiscard]] std::uint64_t backward(std::uint64_t x) const noexcept {
        std::uint64_t left = x >> half_, right = x & mask_;
        for (int r = rounds - 1; r >= 0; --r) {
            const std::uint64_t next = right ^ (mix(left ^ keys_[r]) & mask_);
            right = left;
            left = next;
        }
        return left << half_ | right;
    }

    std::uint64_t n_, mask_ = 0;
    int half_ = 1;
    std::uint64_t keys_[rounds]{};
};

} // namespace skein

// ======== skein/core/posix_disk.hpp
// The disk of the real world: POSIX calls, whole reads and writes, errno as typed errors.
//
//     skein::posix_disk disk;
//     auto content = disk.read_whole("corpus.txt");


#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

namespace skein {

/// errno of a file operation as an error: "write run/a: no space left on device".
[[nodiscard]] error errno_error(int number, std::string_view verb, const std::string& path);

namespace detail {

/// Repeats a system call that a signal interrupted.
template <class Call>
auto retry_eintr(Call call) noexcept(noexcept(call())) {
    for (;;) {
        const auto r = call();
        if (r != -1 || errno != EINTR) return r;
    }
}

} // namespace detail

/// What open() does when the last name of a path is a symbolic link.
enum class link_policy : std::uint8_t {
    follow,
    refuse ///< permission_denied: in a folder that others may write, a link can point at any file
};

/// Only files are opened: a pipe or socket in the place of one is refused at once, nothing waits for it.
class posix_disk final : public disk {
public:
    explicit posix_disk(link_policy links = link_policy::follow) noexcept : links_(links) {}

    result<std::unique_ptr<file>> open(const std::string& path, open_mode mode) override;
    result<void> rename(const std::string& from, const std::string& to) override;
    result<void> sync_dir(const std::string& path) override;
    result<std::vector<dir_entry>> list(const std::string& path) override;
    result<void> remove(const std::string& path) override;
    result<void> make_dirs(const std::string& path) override;
    result<std::uint64_t> free_space(const std::string& path) override;
    result<dir_entry> status(const std::string& path) override;

private:
    link_policy links_;
};

} // namespace skein


// ======== skein/core/detail/posix_disk.ipp
// POSIX calls behind skein::disk.

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace skein {

SKEIN_INLINE error errno_error(int number, std::string_view verb, const std::string& path) {
    errc code = errc::io;
    const char* hint = "";
    switch (number) {
    case ENOSPC:
    case EDQUOT:
        code = errc::disk_full;
        hint = "free some space there or choose another folder";
        break;
    case EACCES:
    case EPERM:
    case EROFS:
        code = errc::permission_denied;
        hint = "check the owner and the mode, or choose another folder";
        break;
    case ENOENT:
    case ENOTDIR: code = errc::not_found; break;
    case EEXIST: code = errc::already_exists; break;
    case EFBIG: code = errc::too_large; break;
    case EMFILE:
    case ENFILE:
        code = errc::exhausted;
        hint = "raise the limit of open files (ulimit -n)";
        break;
    default: break;
    }
    std::string reason = std::strerror(number);
    if (!reason.empty() && reason[0] >= 'A' && reason[0] <= 'Z')
        reason[0] = static_cast<char>(reason[0] - 'A' + 'a');
    auto failure = error(code, fmt::format("{} {}: {}", verb, path, reason));
    if (*hint != '\0') failure.with_hint(hint);
    return failure;
}

namespace detail {

class posix_file final : public file {
public:
    posix_file(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
    ~posix_file() override {
        if (fd_ >= 0) ::close(fd_);
    }

    result<std::size_t> read_at(std::uint64_t offset, mut_byte_span into) override {
        std::size_t got = 0;
        while (got < into.size()) {
            const auto n = retry_eintr([&] {
                return ::pread(fd_, into.data() + got, into.size() - got,
                               static_cast<off_t>(offset + got));
            });
            if (n < 0) return failed("read");
            if (n == 0) break;
            got += static_cast<std::size_t>(n);
        }
        return got;
    }
    result<void> write_at(std::uint64_t offset, byte_span bytes) override {
        while (!bytes.empty()) {
            const auto n = retry_eintr([&] {
                return ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
            });
            if (n < 0) return failed("write");
            offset += static_cast<std::uint64_t>(n);
            bytes = bytes.subspan(static_cast<std::size_t>(n));
        }
        return {};
    }
    result<void> append(byte_span bytes) override {
        const auto end = size();
        if (!end) return end.error();
        return write_at(*end, bytes);
    }
    result<std::uint64_t> size() override {
        struct stat info{};
        if (::fstat(fd_, &info) != 0) return failed("stat");
        return static_cast<std::uint64_t>(info.st_size);
    }
    result<void> truncate(std::uint64_t bytes) override {
        if (retry_eintr([&] { return ::ftruncate(fd_, static_cast<off_t>(bytes)); }) != 0)
            return failed("truncate");
        return {};
    }
    result<void> sync() override {
        if (retry_eintr([&] { return ::fsync(fd_); }) != 0) return failed("sync");
        return {};
    }
    result<void> close() override {
        if (fd_ < 0) return {};
        const int fd = std::exchange(fd_, -1);
        // Linux has released the descriptor even when close() was interrupted: never repeat it.
        if (::close(fd) != 0 && errno != EINTR) return errno_error(errno, "close", path_);
        return {};
    }

private:
    [[nodiscard]] error failed(std::string_view verb) const {
        if (fd_ < 0)
            return error(errc::closed, fmt::format("{} {}: the file is closed", verb, path_));
        return errno_error(errno, verb, path_);
    }

    int fd_;
    std::string path_;
};

} // namespace detail

SKEIN_INLINE result<std::unique_ptr<file>> posix_disk::open(const std::string& path,
                                                            open_mode mode) {
    int flags = O_CLOEXEC | O_NONBLOCK; // a pipe in the place of a file must not block
    if (links_ == link_policy::refuse) flags |= O_NOFOLLOW;
    const char* verb = "open";
    switch (mode) {
    case open_mode::read: flags |= O_RDONLY; break;
    case open_mode::write: flags |= O_RDWR | O_CREAT | O_TRUNC, verb = "create"; break;
    case open_mode::append: flags |= O_RDWR | O_CREAT, verb = "create"; break;
    case open_mode::create_new: flags |= O_RDWR | O_CREAT | O_EXCL, verb = "create"; break;
    }
    const int fd = detail::retry_eintr([&] { return ::open(path.c_str(), flags, 0666); });
    if (fd < 0 && errno == ELOOP && links_ == link_policy::refuse)
        return error(errc::permission_denied,
                     fmt::format("{} {}: it is a symbolic link", verb, path))
            .with_hint("put the file itself there: links are not followed in this folder");
    if (fd < 0) return errno_error(errno, verb, path);
    std::unique_ptr<file> opened = std::make_unique<detail::posix_file>(fd, path);
    struct stat info{};
    if (::fstat(fd, &info) != 0) return errno_error(errno, verb, path);
    if (S_ISDIR(info.st_mode)) return errno_error(EISDIR, verb, path);
    if (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode))
        return error(errc::io,
                     fmt::format("{} {}: it is a pipe or socket, not a file", verb, path));
    return opened;
}

SKEIN_INLINE result<void> posix_disk::rename(const std::string& from, const std::string& to) {
    if (::rename(from.c_str(), to.c_str()) != 0)
        return errno_error(errno, "rename", from + " to " + to);
    return {};
}

SKEIN_INLINE result<void> posix_disk::sync_dir(const std::string& path) {
    const int fd = detail::retry_eintr(
        [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) return errno_error(errno, "open folder", path);
    const int rc = detail::retry_eintr([&] { return ::fsync(fd); });
    const int number = errno;
    ::close(fd);
    // Some file systems cannot sync a folder and say EINVAL; then there is nothing to wait for.
    if (rc != 0 && number != EINVAL) return errno_error(number, "sync folder", path);
    return {};
}

SKEIN_INLINE result<std::vector<dir_entry>> posix_disk::list(const std::string& path) {
    const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()),
                                                  [](DIR* d) { return ::closedir(d); });
    if (!dir) return errno_error(errno, "list", path);
    std::vector<dir_entry> entries;
    for (;;) {
        errno = 0;
        const dirent* item = ::readdir(dir.get());
        if (item == nullptr) break;
        dir_entry entry;
        entry.name = item->d_name;
        if (entry.name == "." || entry.name == "..") continue;
        struct stat info{};
        if (::fstatat(::dirfd(dir.get()), item->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno == ENOENT) continue; // removed in the meantime
            return errno_error(errno, "stat", join_path(path, item->d_name));
        }
        entry.is_directory = S_ISDIR(info.st_mode);
        entry.bytes = entry.is_directory ? 0 : static_cast<std::uint64_t>(info.st_size);
        entries.push_back(std::move(entry));
    }
    if (errno != 0) return errno_error(errno, "list", path);
    std::sort(entries.begin(), entries.end(),
              [](const dir_entry& a, const dir_entry& b) { return a.name < b.name; });
    return entries;
}

SKEIN_INLINE result<void> posix_disk::remove(const std::string& path) {
    if (::remove(path.c_str()) != 0) return errno_error(errno, "remove", path);
    return {};
}

SKEIN_INLINE result<void> posix_disk::make_dirs(const std::string& path) {
    for (std::size_t end = 0; end != std::string::npos;) {
        end = path.find('/', end + 1);
        const std::string folder = path.substr(0, end);
        if (folder.empty() || ::mkdir(folder.c_str(), 0777) == 0) continue;
        const int number = errno;
        struct stat info{};
        if (::stat(folder.c_str(), &info) != 0) return errno_error(number, "create folder", folder);
        if (!S_ISDIR(info.st_mode)) return errno_error(ENOTDIR, "create folder", folder);
    }
    return {};
}

SKEIN_INLINE result<std::uint64_t> posix_disk::free_space(const std::string& path) {
    struct statvfs info{};
    if (detail::retry_eintr([&] { return ::statvfs(path.c_str(), &info); }) != 0)
        return errno_error(errno, "free space of", path);
    return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

SKEIN_INLINE result<dir_entry> posix_disk::status(const std::string& path) {
    struct stat info{};
    if (::stat(path.c_str(), &info) != 0) return errno_error(errno, "stat", path);
    dir_entry entry;
    const auto slash = path.find_last_of('/');
    entry.name = slash == std::string::npos ? path : path.substr(slash + 1);
    entry.is_directory = S_ISDIR(info.st_mode);
    entry.bytes = entry.is_directory ? 0 : static_cast<std::uint64_t>(info.st_size);
    return entry;
}

} // namespace skein

// ======== skein/core/semaphore.hpp
// semaphore: a counted budget (bytes, slots) shared by tasks of one loop. First come first served, so a
// large request is not starved by small ones.


#include <cstddef>

namespace skein {

/// A number of units that tasks of one loop take and give back. Neither copyable nor movable.
class semaphore {
public:
    explicit semaphore(std::size_t available) noexcept : available_(available) {}
    semaphore(const semaphore&) = delete;
    semaphore& operator=(const semaphore&) = delete;

    class awaiter : public waiter {
    public:
        awaiter(semaphore& s, std::size_t n) noexcept : semaphore_(s), need_(n) {}
        bool await_ready() noexcept { return semaphore_.try_acquire(need_); }
        template <detail::promise_with_context Promise>
        bool await_suspend(std::coroutine_handle<Promise> h) {
            if (!arm(h)) return false;
            semaphore_.waiting_.push_back(*this);
            return true;
        }
        void await_resume() const { throw_if_cancelled(); }

    protected:
        void cancel_requested() noexcept override {
            end_cancelled();
            semaphore_.serve(); // the next in line may need less
        }

    private:
        friend class semaphore;
        semaphore& semaphore_;
        std::size_t need_;
    };
    /// Suspends until n units are this task's; resumed by the loop. Throws cancelled; then none are taken.
    [[nodiscard]] awaiter acquire(std::size_t n = 1) noexcept { return awaiter(*this, n); }
    /// Takes n units if they are there and nobody waits.
    [[nodiscard]] bool try_acquire(std::size_t n = 1) noexcept {
        if (!waiting_.empty() || available_ < n) return false;
        available_ -= n;
        return true;
    }
    void release(std::size_t n = 1) noexcept {
        available_ += n;
        serve();
    }
    [[nodiscard]] std::size_t available() const noexcept { return available_; }

private:
    void serve() noexcept {
        while (!waiting_.empty()) {
            auto& first = static_cast<awaiter&>(waiting_.front());
            if (first.need_ > available_) return;
            available_ -= first.need_;
            first.wake();
        }
    }

    std::size_t available_;
    intrusive_list<waiter, waiter> waiting_;
};

} // namespace skein

// ======== skein/core/type_name.hpp
// Names of types and functions as people write them, for messages.
//
//     type_name(typeid(e))            // "std::runtime_error"


#include <string>
#include <typeinfo>

namespace skein {

/// The name behind a mangled one; a text that is no mangled name comes back as it is.
[[nodiscard]] std::string readable_name(const char* mangled);

/// The name of a type as people write it.
[[nodiscard]] inline std::string type_name(const std::type_info& type) {
    return readable_name(type.name());
}

} // namespace skein


// ======== skein/core/detail/type_name.ipp
// Bodies of <skein/core/type_name.hpp>.

#include <cstdlib>
#include <memory>

#include <cxxabi.h>

namespace skein {

SKEIN_INLINE std::string readable_name(const char* mangled) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> text(
        abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
    return status == 0 ? std::string(text.get()) : std::string(mangled);
}

} // namespace skein

// ======== skein/net.hpp
// Every public header of the layer net.
// Written by scripts/check_mirror.py --write.


// ======== skein/net/endpoint.hpp
// The listening side of connections as a whole: an acceptor, the handshake, one task per connection.
//
//     net::endpoint server(network, net::address::tcp("127.0.0.1", 0), options);
//     auto serving = server.serve([](net::connection::handle c) { return talk(std::move(c)); });


#include <cstdint>
#include <memory>

namespace skein::net {

/// Listens and serves until it is closed or cancelled.
class endpoint {
public:
    using handler = unique_function<task<void>(connection::handle)>;

    /// Binds at once.
    ///   errors  those of network::listen; permission_denied: an address that other hosts can reach
    ///           without a token
    endpoint(network& via, const address& at, connection_options options,
             acceptor_options bounds = {});
    ~endpoint();

    [[nodiscard]] address local() const { return door_.local(); }

    /// Accepts until close(). Every connection gets a task of `serve_one` in the scope of this call; an
    /// error of one (handshake or handler) is logged and ends that one only, whatever its code. Streams
    /// that cannot be accepted are logged, too, and accepting goes on. Returns when all ended.
    ///   errors  cancelled (then the tasks are cancelled too); what a listener cannot get over
    ///           (invalid_argument, not_supported)
    [[nodiscard]] task<void> serve(handler serve_one);

    /// Stops accepting; connections that are served go on.
    void close() noexcept { door_.close(); }

    /// Streams that were not authenticated, and connections served so far.
    [[nodiscard]] std::uint64_t refused() const noexcept { return door_.refused(); }
    [[nodiscard]] std::uint64_t accepted() const noexcept { return door_.authenticated(); }

private:
    static task<void> one(endpoint* self, std::unique_ptr<stream> from, admission* place);

    connection_options options_;
    acceptor door_;
    handler handler_;
};

} // namespace skein::net


// ======== skein/net/detail/endpoint.ipp
// What an endpoint does with a stream: handshake, handler, an orderly end.


#include <exception>
#include <optional>
#include <utility>

namespace skein::net {
namespace detail {

/// A door without a lock must not stand where others can reach it.
SKEIN_INLINE const address& check_guarded(const address& at, const token& secret) {
    if (secret.empty() && !at.is_loopback()) {
        throw error(errc::permission_denied, "listen " + to_string(at) + " without a token")
            .with_hint("give a token, or listen on 127.0.0.1");
    }
    return at;
}

/// The handshake has a limit of its own.
SKEIN_INLINE acceptor_options without_deadline(acceptor_options bounds) {
    bounds.deadline.reset();
    return bounds;
}

} // namespace detail

SKEIN_INLINE endpoint::endpoint(network& via, const address& at, connection_options options,
                                acceptor_options bounds)
    : options_(std::move(options)),
      door_(via, detail::check_guarded(at, options_.secret), detail::without_deadline(bounds)) {}
SKEIN_INLINE endpoint::~endpoint() = default;

SKEIN_INLINE task<void> endpoint::serve(handler serve_one) {
    handler_ = std::move(serve_one);
    return door_.serve([this](std::unique_ptr<stream> from, admission* place) {
        return one(this, std::move(from), place);
    });
}

SKEIN_INLINE task<void> endpoint::one(endpoint* self, std::unique_ptr<stream> from,
                                      admission* place) {
    auto* cancel = co_await skein::detail::current_cancel{};
    auto greeting = connection::accept(std::move(from), self->options_);
    const connection::handle c = co_await greeting;
    place->authenticated();
    std::optional<error> fault;
    try {
        auto serving = self->handler_(c);
        co_await serving;
    } catch (...) {
        fault = to_error(std::current_exception());
    }
    if (fault) c->abort(*fault);
    auto closing = shield(c->close());
    co_await closing;
    if (!fault) co_return;
    if (fault->code() == errc::cancelled && cancel != nullptr && cancel->requested()) throw *fault;
    logging::warn("net", "connection failed", {{"peer", c->peer_name()}, {"why", fault->what()}});
}

} // namespace skein::net

// ======== skein/net/link.hpp
// Messages between two processes, in order, each exactly once, also when the connection below breaks.
//
// A connection delivers in order until it breaks, so both sides only count: the sender keeps what is not
// confirmed, the dialling side dials again, both say how many they have, and the rest is sent again. The
// link ends in order (close), or with an error: the peer did not come back in time, was restarted, has
// forgotten the link, or was declared dead. On Unix sockets the kernel reports a death: there nothing is
// kept, and a broken connection is the end.
//
//     auto dialing = net::link::connect(network, to, options);
//     auto l = co_await dialing;
//     l->send(7, 0, id, head, body);               // also while the connection is broken
//     co_await l->close();                         // when the peer has everything
//
// The accepting side is in link_endpoint.hpp.


// ======== skein/net/detail/link_window.hpp
// What a link has sent and its peer has not confirmed: messages in order, small ones copied one behind the
// other into blocks, large ones shared with the connection that writes them.
//
// Three counts move through it: pushed >= handed (to the present connection) >= acknowledged.


#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>

namespace skein::net::detail {

/// The messages of one direction of a link that may have to be sent again.
class link_window {
public:
    using shared_body = std::shared_ptr<const byte_buffer>;

    /// A kept message; `large` is set when its body is shared.
    struct entry {
        std::uint16_t kind = 0, flags = 0;
        std::uint64_t id = 0;
        byte_span body;
        shared_body large;
    };

    /// Appends a message and copies it. The high bit of the flags must be clear.
    void push(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
              byte_span body);
    /// The same with a body that is kept by reference.
    void push(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, shared_body body);

    /// As the first push, of a message that the caller sends itself; nothing may be pending.
    void push_handed(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
                     byte_span body) {
        copy(kind, flags, id, head, body);
        ++handed_;
    }
    /// The first message that is not handed; now it is. There must be one; valid until the next call.
    entry hand_next();
    /// All kept messages are to be handed (to another connection) again.
    void rewind() noexcept;
    /// The peer has the first `count` of all messages. False, and nothing happens, if that cannot be.
    [[nodiscard]] bool acknowledge(std::uint64_t count) noexcept;
    [[nodiscard]] bool can_acknowledge(std::uint64_t count) const noexcept {
        return count >= acknowledged_ && count <= handed_;
    }
    void clear() noexcept;

    [[nodiscard]] bool has_pending() const noexcept { return handed_ != pushed_; }
    [[nodiscard]] std::uint64_t pushed() const noexcept { return pushed_; }
    [[nodiscard]] std::uint64_t acknowledged() const noexcept { return acknowledged_; }
    /// Messages and bytes (bodies and a small header each) that are kept.
    [[nodiscard]] std::size_t messages() const noexcept {
        return static_cast<std::size_t>(pushed_ - acknowledged_);
    }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    /// Of them, those that are not handed.
    [[nodiscard]] std::size_t pending_bytes() const noexcept { return pending_bytes_; }
    /// Memory it holds.
    [[nodiscard]] std::size_t capacity() const noexcept;

    static constexpr std::size_t header_bytes = 16;

private:
    static constexpr std::size_t block_bytes = std::size_t{16} << 10;
    static constexpr std::uint16_t large_flag = 0x8000;

    struct block {
        std::unique_ptr<std::byte[]> data;
        std::size_t used = 0, capacity = 0; // used: of blocks before the last
    };
    /// A place between two messages.
    struct cursor {
        std::uint64_t block = 0; // counted from the first that there ever was
        std::size_t at = 0;
        std::size_t large = 0; // index into large_
    };
    std::byte* grab(std::size_t n) {
        if (free_ < n) more(n);
        std::byte* const at = end_;
        end_ += n;
        free_ -= n;
        return at;
    }
    void more(std::size_t n);
    std::byte* write(std::uint32_t length, std::uint16_t kind, std::uint16_t flags,
                     std::uint64_t id, std::size_t stored) {
        std::byte* const to = grab(header_bytes + stored);
        store_le(to, length);
        store_le(to + 4, kind);
        store_le(to + 6, flags);
        store_le(to + 8, id);
        return to + header_bytes;
    }
    void copy(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
              byte_span body) {
        const std::size_t bytes = head.size() + body.size();
        std::byte* const to = write(static_cast<std::uint32_t>(bytes), kind, flags, id, bytes);
        if (!head.empty()) std::memcpy(to, head.data(), head.size());
        if (!body.empty()) std::memcpy(to + head.size(), body.data(), body.size());
        ++pushed_;
        bytes_ += header_bytes + bytes;
    }
    void begin_pending() noexcept;
    [[nodiscard]] std::size_t used(std::size_t index) const noexcept;
    [[nodiscard]] const std::byte* at(cursor& c) const noexcept;
    void drop_blocks() noexcept;

    std::deque<block> blocks_;
    std::uint64_t first_block_ = 0;
    block spare_;
    std::byte* end_ = nullptr; // of what is written in the last block
    std::size_t free_ = 0;     // behind it
    std::deque<shared_body> large_;
    cursor front_, next_; // the oldest message; the first that is not handed, if there is one
    std::uint64_t pushed_ = 0, handed_ = 0, acknowledged_ = 0;
    std::size_t bytes_ = 0, pending_bytes_ = 0;
};

} // namespace skein::net::detail


// ======== skein/net/detail/link_window.ipp
// The blocks of a link's window.

#include <algorithm>
#include <utility>

namespace skein::net::detail {

/// Begins another block.
SKEIN_INLINE void link_window::more(std::size_t n) {
    block fresh;
    if (spare_.capacity >= n) {
        fresh = std::exchange(spare_, block());
    } else {
        fresh.capacity = std::max(n, block_bytes);
        fresh.data = std::make_unique_for_overwrite<std::byte[]>(fresh.capacity);
    }
    if (!blocks_.empty()) blocks_.back().used = blocks_.back().capacity - free_;
    end_ = fresh.data.get();
    free_ = fresh.capacity;
    blocks_.push_back(std::move(fresh));
}

SKEIN_INLINE std::size_t link_window::used(std::size_t index) const noexcept {
    const block& b = blocks_[index];
    return index + 1 == blocks_.size() ? b.capacity - free_ : b.used;
}

/// The next message is the first that is not handed.
SKEIN_INLINE void link_window::begin_pending() noexcept {
    if (has_pending()) return;
    next_ = {first_block_, 0, large_.size()};
    if (blocks_.empty()) return;
    next_.block = first_block_ + blocks_.size() - 1;
    next_.at = blocks_.back().capacity - free_;
}

SKEIN_INLINE void link_window::push(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                                    byte_span head, byte_span body) {
    begin_pending();
    copy(kind, flags, id, head, body);
    pending_bytes_ += header_bytes + head.size() + body.size();
}

SKEIN_INLINE void link_window::push(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                                    shared_body body) {
    const std::size_t bytes = body->size();
    begin_pending();
    large_.push_back(std::move(body));
    (void)write(static_cast<std::uint32_t>(bytes), kind,
                static_cast<std::uint16_t>(flags | large_flag), id, 0);
    ++pushed_;
    bytes_ += header_bytes + bytes;
    pending_bytes_ += header_bytes + bytes;
}

/// The bytes of the message at c, which must exist; steps over the end of a block.
SKEIN_INLINE const std::byte* link_window::at(cursor& c) const noexcept {
    for (;;) {
        const auto index = static_cast<std::size_t>(c.block - first_block_);
        if (c.at < used(index)) return blocks_[index].data.get() + c.at;
        ++c.block;
        c.at = 0;
    }
}

SKEIN_INLINE link_window::entry link_window::hand_next() {
    const std::byte* const from = at(next_);
    const auto length = load_le<std::uint32_t>(from);
    entry e;
    e.kind = load_le<std::uint16_t>(from + 4);
    e.flags = load_le<std::uint16_t>(from + 6);
    e.id = load_le<std::uint64_t>(from + 8);
    const bool large = (e.flags & large_flag) != 0;
    e.flags &= static_cast<std::uint16_t>(~large_flag);
    if (large) {
        e.large = large_[next_.large++];
        e.body = *e.large;
    } else {
        e.body = byte_span(from + header_bytes, length);
    }
    next_.at += header_bytes + (large ? 0 : length);
    ++handed_;
    pending_bytes_ -= header_bytes + length;
    return e;
}

SKEIN_INLINE void link_window::rewind() noexcept {
    next_ = front_;
    handed_ = acknowledged_;
    pending_bytes_ = bytes_;
}

SKEIN_INLINE bool link_window::acknowledge(std::uint64_t count) noexcept {
    if (!can_acknowledge(count)) return false;
    while (acknowledged_ < count) {
        const auto index = static_cast<std::size_t>(front_.block - first_block_);
        const std::byte* const data = blocks_[index].data.get();
        const std::size_t end = used(index);
        for (; acknowledged_ < count && front_.at < end; ++acknowledged_) {
            const auto length = load_le<std::uint32_t>(data + front_.at);
            const bool large = (load_le<std::uint16_t>(data + front_.at + 6) & large_flag) != 0;
            if (large) {
                large_.pop_front();
                --next_.large;
            }
            front_.at += header_bytes + (large ? 0 : length);
            bytes_ -= header_bytes + length;
        }
        if (front_.at >= end && index + 1 < blocks_.size()) front_ = {front_.block + 1, 0, 0};
    }
    drop_blocks();
    return true;
}

/// Blocks before the oldest message go; one is kept for the next.
SKEIN_INLINE void link_window::drop_blocks() noexcept {
    while (first_block_ < front_.block) {
        block& first = blocks_.front();
        if (first.capacity == block_bytes) spare_ = std::move(first);
        blocks_.pop_front();
        ++first_block_;
    }
    if (next_.block < first_block_) next_ = {first_block_, 0, next_.large};
    if (messages() != 0 || blocks_.empty()) return;
    block& only = blocks_.back(); // nothing is kept: begin again at its front
    free_ = only.capacity;
    end_ = only.data.get();
    front_.at = next_.at = 0;
}

SKEIN_INLINE void link_window::clear() noexcept {
    blocks_.clear();
    large_.clear();
    spare_ = block();
    end_ = nullptr;
    free_ = 0;
    acknowledged_ = handed_ = pushed_;
    bytes_ = pending_bytes_ = 0;
    front_ = next_ = {first_block_, 0, 0};
}

SKEIN_INLINE std::size_t link_window::capacity() const noexcept {
    std::size_t sum = spare_.capacity;
    for (const auto& b : blocks_) sum += b.capacity;
    for (const auto& body : large_) sum += body->capacity();
    return sum;
}

} // namespace skein::net::detail


// ======== skein/net/link.hpp, continued
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

namespace skein::net {

/// Kinds from here on belong to links and connections.
inline constexpr std::uint16_t first_link_kind = 0xfe00;

/// Whether a broken connection is the end of the link.
enum class resume_mode : std::uint8_t {
    automatic, ///< links resume, but not over Unix sockets, where the kernel reports the death of the peer
    on,
    off,
};

/// What a link may keep, and how long it waits for its peer.
struct link_options {
    std::uint64_t incarnation =
        0;                    ///< of this process, never 0 and never reused; 0: drawn for each link
    std::uint64_t expect = 0; ///< the incarnation to be reached; 0: whoever answers
    resume_mode resume = resume_mode::automatic;
    duration resume_within = time_constants::lan().dead_after; ///< after a break
    std::size_t window_messages = 65'536;             ///< send_ready() waits while more are kept
    std::size_t window_bytes = std::size_t{16} << 20; ///< the same in bytes
    std::size_t most_messages = std::size_t{1} << 20; ///< send() refuses above
    std::size_t most_bytes = limit::queue_bytes; ///< the same in bytes; one message may exceed it
    std::size_t queue_bytes = std::size_t{1} << 20;     ///< handed to the connection at a time
    std::uint64_t ack_messages = 256;                   ///< confirmed at the latest
    std::size_t ack_bytes = std::size_t{256} << 10;     ///< the same in bytes
    duration ack_after = std::chrono::milliseconds(50); ///< the same in time
    duration attempt_timeout =
        std::chrono::seconds(1);               ///< of one dial and one hello, after a break
    reconnect_policy first = {.max_tries = 1}; ///< of connect()
};

/// How a link has ended.
enum class link_end : std::uint8_t {
    none,          ///< it has not
    orderly,       ///< both sides have all messages of the other
    here,          ///< abort(), a handler that threw, a cancelled or dropped link
    by_peer,       ///< the peer has aborted it
    broken,        ///< the connection broke, and this link does not resume
    deadline,      ///< the peer did not come back in time
    declared_dead, ///< declare_dead() on either side
    restarted,     ///< another incarnation answers at the peer's address
    forgotten,     ///< the peer knows no such link (any more)
    refused,       ///< the peer refuses to go on, or said what cannot be
};

/// Counts of one link since it was made.
struct link_statistics {
    std::uint64_t messages_in = 0, messages_out = 0;
    std::uint64_t breaks = 0, resumes = 0; ///< connections lost, and replaced
    std::uint64_t sent_again = 0;          ///< messages
    std::uint64_t acks_in = 0, acks_out = 0;
};

namespace detail {
class link_books;
struct link_hello;
struct link_answer;
} // namespace detail

/// One end of a link. Belongs to one loop; share it by shared_ptr. Dropping the last shared_ptr aborts it;
/// close() first for an orderly end.
class link {
public:
    using handle = std::shared_ptr<link>;

    /// Dials, shakes hands, and agrees on a new link. `via` must outlive the link, which dials again.
    ///   errors  those of connection::connect and dial_patiently; mismatch (another incarnation than
    ///           expected, another version of links), exhausted (the peer has no place), refused
    static task<handle> connect(network& via, address to, connection_options options,
                                link_options how = {});

    link(const link&) = delete;
    link& operator=(const link&) = delete;

    [[nodiscard]] const identity& peer() const noexcept { return peer_; }
    /// "name (pid 7 at host) over tcp:10.0.0.3:6380", for messages.
    [[nodiscard]] const std::string& peer_name() const noexcept { return peer_name_; }
    /// The peer's host, see stream::peer_host(); empty while the connection is broken.
    [[nodiscard]] std::string peer_host() const {
        return connection_ ? connection_->peer_host() : std::string();
    }
    [[nodiscard]] std::uint64_t peer_incarnation() const noexcept { return theirs_; }
    [[nodiscard]] std::uint64_t incarnation() const noexcept { return ours_; }
    /// Grows with every connection of this link.
    [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

    /// Queues a message, also while the connection is broken. The bytes are taken before it returns.
    ///   errors  closed, the failure of the link, too_large, exhausted (link_options::most_bytes)
    void send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
              byte_span body = {});
    /// The same; a large body is moved and never copied.
    void send(frame f);
    /// Waits while more than the window is not confirmed, or more than `most_queued` bytes wait for the
    /// network; throws like send.
    task<void> send_ready(std::size_t most_queued);
    task<void> send_ready() { return send_ready(options_.bounds.max_send_queue); }
    /// Bytes that wait for the network.
    [[nodiscard]] std::size_t queued_bytes() const noexcept;
    /// Messages and bytes kept until the peer confirms them; 0 for a link that does not resume.
    [[nodiscard]] std::size_t kept_messages() const noexcept { return window_.messages(); }
    [[nodiscard]] std::size_t kept_bytes() const noexcept { return window_.bytes(); }
    /// Hands what is queued to the kernel now instead of at the end of the turn.
    void flush() noexcept;

    /// The next message in order; nothing after the peer's orderly close.
    ///   errors  the failure of the link; closed (by us), cancelled
    task<std::optional<frame>> receive();
    /// Instead of receive(): as connection::set_handler. An exception from it aborts the link.
    void set_handler(unique_function<void(const frame_view&)> handler);
    /// Called once when the link has ended: nullptr = orderly, else why. At once if it has.
    void set_closed_handler(unique_function<void(const error*)> handler);
    /// Back-pressure towards the peer: stops reading until resume_reading() or close().
    void pause_reading() noexcept;
    void resume_reading() noexcept;

    /// Orderly end: waits until the peer has everything and has said goodbye, through breaks, at most
    /// limits::close_deadline, and resume_within more for a link that resumes. Never throws; ending()
    /// and failure() tell what came of it.
    task<void> close();
    /// Ends at once; the peer is told, if it can be.
    void abort(error why) noexcept;
    /// Ends at once because somebody who knows (an agent, the head) says that the peer is dead. Should it
    /// come back, it is told so.
    void declare_dead(std::string why) noexcept;
    /// Waits for the end, whoever caused it; throws only cancelled.
    task<void> wait_closed();

    /// Takes messages: not closing, not ended. A broken connection does not matter.
    [[nodiscard]] bool is_open() const noexcept { return state_ == state::open; }
    [[nodiscard]] bool is_connected() const noexcept { return connected_; }
    /// Survives broken connections.
    [[nodiscard]] bool resumes() const noexcept { return resumes_; }
    /// The peer is silent or the connection is broken.
    [[nodiscard]] bool is_suspect() const noexcept {
        return state_ != state::ended &&
               (!connected_ || (connection_ && connection_->is_suspect()));
    }
    [[nodiscard]] link_end ending() const noexcept { return ending_; }
    /// Why it ended; nothing while open or after an orderly end.
    [[nodiscard]] const std::optional<error>& failure() const noexcept { return failure_; }
    [[nodiscard]] const link_statistics& statistics() const noexcept { return statistics_; }

    ~link();

private:
    friend class detail::link_books;
    enum class state : std::uint8_t { open, closing, ended };
    using core = std::shared_ptr<link>;

    link(connection_options options, link_options how, bool dialling);
    static handle handle_of(core made);

    // Connections come and go (detail/link_resume.ipp).
    [[nodiscard]] detail::link_hello hello() const;
    task<void> dial_first(core self);
    static task<void> dial_once(core self, duration limit);
    static task<void> dial_again(core self);
    void take_answer(const detail::link_answer& answer, connection::handle over);
    void begin(const identity& peer, std::string name, std::uint64_t incarnation, bool resumes,
               std::uint64_t window_messages, std::uint64_t window_bytes);
    void attach(connection::handle over, std::uint64_t peer_has);
    void on_connection_end(std::uint64_t generation, const error* why) noexcept;
    void break_off(error why) noexcept;
    void come_back_too_late() noexcept;

    // Sending.
    void check_sendable(std::uint16_t kind, std::size_t bytes) const;
    [[nodiscard]] bool is_direct() const noexcept;
    void push_on();
    static task<void> pump(core self, connection::handle over);
    void hand_out();

    // Receiving.
    void on_frame(const frame_view& f);
    void on_own_frame(const frame_view& f);
    void count_received(std::size_t bytes);
    void acknowledge() noexcept;
    void deliver(const frame_view& f);
    void call_handler(const frame_view& f);

    // The end.
    void begin_close() noexcept;
    [[nodiscard]] bool is_concluded() const noexcept;
    void settle();
    static task<void> finish(connection::handle over);
    void say_farewell(std::uint64_t verdict, const std::string& why) noexcept;
    void end(std::optional<error> why, link_end how) noexcept;
    void spawn(task<void> work);
    static task<void> part(core self, task<void> work);
    void release() noexcept;

    struct own_timer : timer_node {
        own_timer(link& l, void (link::*then)() noexcept) noexcept
            : timer_node([](timer_node& t) {
                  auto& self = static_cast<own_timer&>(t);
                  (self.owner.*self.what)();
              }),
              owner(l), what(then) {}
        link& owner;
        void (link::*what)() noexcept;
    };
    void acknowledge_late() noexcept;

    loop& loop_;
    connection_options options_;
    link_options how_;
    identity peer_;
    std::string peer_name_;
    link_statistics statistics_;

    // Who, and by which connection.
    bool dialling_, resumes_ = false, connected_ = false, answered_ = false, dialing_again_ = false;
    std::uint64_t ours_, theirs_ = 0, number_ = 0, generation_ = 0;
    network* via_ = nullptr; // of the dialling side
    address to_;
    connection::handle connection_;
    std::optional<error> break_; // why the last connection ended
    own_timer deadline_{*this, &link::come_back_too_late};
    std::shared_ptr<detail::link_books> books_; // of the accepting side

    // Sending.
    detail::link_window window_;
    std::uint64_t pumping_ = 0; // the generation whose pump runs
    wait_queue room_;

    // Receiving.
    std::uint64_t received_ = 0, told_ = 0; // messages; of them, confirmed
    std::size_t untold_bytes_ = 0;
    std::uint64_t ack_messages_ = 1;
    std::size_t ack_bytes_ = 1;
    own_timer ack_timer_{*this, &link::acknowledge_late};
    unique_function<void(const frame_view&)> handler_, replacement_;
    bool in_handler_ = false, replaced_ = false;
    bool paused_ = false, full_ = false;
    std::deque<frame> waiting_;
    std::size_t waiting_bytes_ = 0;
    wait_queue receivers_;

    // Life.
    state state_ = state::open;
    link_end ending_ = link_end::none;
    bool sent_fin_ = false, got_fin_ = false, finishing_ = false;
    std::optional<error> failure_;
    unique_function<void(const error*)> closed_handler_;
    event ended_;
    std::size_t parts_ = 0; // tasks that run
    core self_;             // while it lives
    scope tasks_;
};

} // namespace skein::net


// ======== skein/net/detail/link.ipp
// The machinery of net::link on whatever connection it has: sending, receiving, the end.


// ======== skein/net/detail/link_books.hpp
// What the accepting side knows of its links: those that live, and, for a while, how others have ended.


// ======== skein/net/detail/link_hello.hpp
// What the two ends of a link say first on every connection, and the kinds of a link's own frames.
//
//   dialling side                              accepting side
//   hello: link, generation, received   --->
//                                       <---   answer: verdict, generation, received
//   messages from `received` on         <-->   messages from `received` on


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
    link_ack_kind = 0xfe03,      ///< id: messages received
    link_fin_kind = 0xfe04,      ///< no more messages follow; counts as one
    link_farewell_kind = 0xfe05, ///< the link ends now; the body says why, id: an answer's verdict
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
///   errors  malformed (another kind, another version, bytes that do not decode, numbers out of range)
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


// ======== skein/net/detail/link_books.hpp, continued
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace skein::net::detail {

/// An incarnation or number that no other one has.
[[nodiscard]] std::uint64_t draw_number(random_source& random);

/// Shared by a link_table and its links, so that either may go first.
class link_books : public std::enable_shared_from_this<link_books> {
public:
    link_books(connection_options options, link_options how, std::size_t most_links,
               std::size_t most_waiting, std::uint64_t incarnation);

    /// Answers a hello; a new link, or nothing when it was an old one's or `refused`.
    link::handle admit(connection::handle over, const link_hello& hello, bool& refused);
    /// A link has ended.
    void leave(link& l) noexcept;
    /// A link has lost its connection. False: nobody can come back any more.
    [[nodiscard]] bool wait_for(link& l);
    /// No link can come back any more.
    void shut() noexcept { shut_ = true; }

    [[nodiscard]] std::size_t links() const noexcept { return links_.size(); }
    [[nodiscard]] std::size_t waiting() const noexcept;
    [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }
    [[nodiscard]] std::uint64_t resumed() const noexcept { return resumed_; }
    [[nodiscard]] std::uint64_t incarnation() const noexcept { return incarnation_; }
    [[nodiscard]] duration hello_deadline() const noexcept {
        return options_.bounds.handshake_deadline;
    }

private:
    using key =
        std::pair<std::uint64_t, std::uint64_t>; // incarnation and number of the dialling side
    /// What a peer that comes back is told.
    struct epitaph {
        link_verdict verdict;
        std::uint64_t received, generation;
        std::string why;
        time_point until;
    };
    static constexpr std::size_t most_epitaphs = 1024;

    [[nodiscard]] link_answer judge(const connection& over, const link_hello& hello,
                                    link* known) const;
    [[nodiscard]] link_answer answer(link_verdict verdict, std::string why = {}) const;
    link::handle make(connection::handle over, const link_hello& hello);
    void forget_old() noexcept;

    connection_options options_;
    link_options how_;
    std::size_t most_links_, most_waiting_;
    std::uint64_t incarnation_;
    bool shut_ = false;
    std::map<key, link*> links_;
    std::map<key, epitaph> epitaphs_;
    std::deque<key> order_;  // of the epitaphs
    std::deque<key> broken_; // in the order of their breaks; some may be connected again
    std::uint64_t refused_ = 0, resumed_ = 0;
};

} // namespace skein::net::detail


// ======== skein/net/detail/link.ipp, continued
#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

namespace detail {
inline constexpr std::size_t link_share_bytes = std::size_t{8} << 10; ///< from here on shared
} // namespace detail

SKEIN_INLINE link::~link() = default;

// --- sending ----------------------------------------------------------------------------------

SKEIN_INLINE void link::check_sendable(std::uint16_t kind, std::size_t bytes) const {
    if (state_ != state::open) [[unlikely]] {
        if (failure_) throw *failure_;
        throw error(errc::closed, "the link to " + peer_name_ + " is closed");
    }
    SKEIN_CHECK(kind < first_link_kind, "kind {:#x} belongs to links and connections", kind);
    if (bytes > options_.bounds.max_frame) [[unlikely]] {
        throw error(errc::too_large,
                    fmt::format("message of {} bytes to {} is above the limit of {}", bytes,
                                peer_name_, options_.bounds.max_frame))
            .with_hint("send it in pieces or raise limits::max_frame on both sides");
    }
    if (window_.messages() >= how_.most_messages || window_.bytes() >= how_.most_bytes)
        [[unlikely]] {
        throw error(errc::exhausted,
                    fmt::format("{} messages of {} bytes wait for {} to confirm them",
                                window_.messages(), window_.bytes(), peer_name_))
            .with_hint("await send_ready() before more is sent");
    }
}

/// The connection takes a message now, and nothing waits in front of it.
SKEIN_INLINE bool link::is_direct() const noexcept {
    return connected_ && !window_.has_pending() && connection_->is_open() &&
           connection_->queued_bytes() <= how_.queue_bytes;
}

SKEIN_INLINE void link::send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                             byte_span head, byte_span body) {
    const std::size_t bytes = head.size() + body.size();
    check_sendable(kind, bytes);
    flags &= static_cast<std::uint16_t>(~body_crc_flag);
    if (!resumes_) {
        ++statistics_.messages_out;
        connection_->send(kind, flags, id, head, body);
        return;
    }
    if (bytes >= detail::link_share_bytes) {
        frame f{kind, flags, id, {}};
        f.body.reserve(bytes);
        append(f.body, head);
        append(f.body, body);
        send(std::move(f));
        return;
    }
    ++statistics_.messages_out;
    if (!is_direct()) {
        window_.push(kind, flags, id, head, body);
        push_on();
        return;
    }
    window_.push_handed(kind, flags, id, head, body);
    connection_->send(kind, flags, id, head, body);
}

SKEIN_INLINE void link::send(frame f) {
    check_sendable(f.kind, f.body.size());
    if (resumes_ && f.body.size() < detail::link_share_bytes) {
        send(f.kind, f.flags, f.id, f.body);
        return;
    }
    ++statistics_.messages_out;
    if (!resumes_) {
        connection_->send(std::move(f));
        return;
    }
    window_.push(f.kind, f.flags & static_cast<std::uint16_t>(~body_crc_flag), f.id,
                 std::make_shared<const byte_buffer>(std::move(f.body)));
    push_on();
}

/// Hands the next kept message to the connection.
SKEIN_INLINE void link::hand_out() {
    const auto next = window_.hand_next();
    if (next.large) {
        connection_->send_shared(next.kind, next.flags, next.id, next.large);
    } else {
        connection_->send(next.kind, next.flags, next.id, next.body);
    }
}

/// Hands out what the connection takes now; a task does the rest.
SKEIN_INLINE void link::push_on() {
    const auto has_room = [&] {
        return connected_ && connection_->is_open() &&
               connection_->queued_bytes() <= how_.queue_bytes;
    };
    if (pumping_ == generation_) return;
    while (window_.has_pending() && has_room()) hand_out();
    if (!window_.has_pending() || !connected_ || !connection_->is_open()) return;
    pumping_ = generation_;
    spawn(pump(self_, connection_));
}

SKEIN_INLINE task<void> link::pump(core self, connection::handle over) {
    link& l = *self;
    const std::uint64_t mine = l.generation_;
    const auto present = [&] { return l.connected_ && l.connection_ == over; };
    try {
        while (present() && l.window_.has_pending()) {
            auto room = over->send_ready(l.how_.queue_bytes);
            co_await room;
            while (present() && over->is_open() && l.window_.has_pending() &&
                   over->queued_bytes() <= l.how_.queue_bytes) {
                l.hand_out();
            }
        }
    } catch (const error&) { // the connection has ended, which is told elsewhere
    }
    if (l.pumping_ == mine) l.pumping_ = 0;
    l.room_.wake_all();
}

SKEIN_INLINE std::size_t link::queued_bytes() const noexcept {
    return window_.pending_bytes() + (connected_ ? connection_->queued_bytes() : 0);
}

SKEIN_INLINE void link::flush() noexcept {
    if (connected_) connection_->flush();
}

SKEIN_INLINE task<void> link::send_ready(std::size_t most_queued) {
    const auto keep = self_;
    for (;;) {
        check_sendable(0, 0);
        const bool full =
            window_.messages() > how_.window_messages || window_.bytes() > how_.window_bytes;
        if (!full && queued_bytes() <= most_queued) co_return;
        bool moved = false;
        if (!full && connected_ && !window_.has_pending()) {
            const auto over = connection_;
            try {
                auto room = over->send_ready(most_queued);
                co_await room;
                moved = true;
            } catch (const error& e) {
                if (e.code() == errc::cancelled || !resumes_) throw;
            }
        }
        if (moved || state_ != state::open) continue;
        auto change = room_.wait();
        co_await change;
    }
}

// --- receiving --------------------------------------------------------------------------------

SKEIN_INLINE void link::on_frame(const frame_view& f) { // the connection's handler holds the link
    try {
        if (f.kind >= first_link_kind) {
            on_own_frame(f);
            return;
        }
        if (got_fin_) throw error(errc::malformed, "a message after the last one");
        ++statistics_.messages_in;
        if (resumes_) count_received(f.body.size());
        deliver(f);
    } catch (...) { // of the handler, too: going on would lose its message
        const error why = to_error(std::current_exception());
        say_farewell(static_cast<std::uint64_t>(detail::link_verdict::ended), why.text());
        end(why, link_end::here);
    }
}

SKEIN_INLINE void link::count_received(std::size_t bytes) {
    ++received_;
    untold_bytes_ += bytes;
    if (received_ - told_ >= ack_messages_ || untold_bytes_ >= ack_bytes_) {
        acknowledge();
    } else if (!ack_timer_.is_set()) {
        loop_.set_timer(ack_timer_, deadline_after(loop_.now(), how_.ack_after));
    }
}

/// Tells the peer what we have; it leaves with whatever else this turn sends.
SKEIN_INLINE void link::acknowledge() noexcept {
    told_ = received_;
    untold_bytes_ = 0;
    if (!connected_ || !connection_->is_open()) return; // the next hello says it
    try {
        ++statistics_.acks_out;
        connection_->send(detail::link_ack_kind, 0, received_, {});
    } catch (...) {
        break_off(to_error(std::current_exception()));
    }
}

SKEIN_INLINE void link::acknowledge_late() noexcept {
    const auto keep = self_;
    if (resumes_ && told_ != received_) acknowledge();
}

SKEIN_INLINE void link::on_own_frame(const frame_view& f) {
    switch (f.kind) {
    case detail::link_ack_kind:
        if (!resumes_ || !window_.acknowledge(f.id)) {
            throw error(errc::malformed,
                        fmt::format("{} confirms {} messages; {} were sent, {} confirmed",
                                    peer_name_, f.id, window_.pushed(), window_.acknowledged()));
        }
        ++statistics_.acks_in;
        room_.wake_all();
        settle();
        return;
    case detail::link_fin_kind:
        if (got_fin_) throw error(errc::malformed, "a link ends twice");
        got_fin_ = true;
        if (resumes_) {
            ++received_;
            acknowledge();
        }
        receivers_.wake_all();
        begin_close();
        settle();
        return;
    case detail::link_farewell_kind: {
        const std::string why(as_text(f.body.first(std::min<std::size_t>(f.body.size(), 1024))));
        const bool dead = f.id == static_cast<std::uint64_t>(detail::link_verdict::dead);
        end(error(dead ? errc::peer_lost : errc::reset,
                  fmt::format("{} has {}", peer_name_,
                              dead ? "declared this process dead" : "ended the link"))
                .with_cause(why),
            dead ? link_end::declared_dead : link_end::by_peer);
        return;
    }
    default:
        throw error(errc::malformed,
                    fmt::format("unknown link frame {:#x} from {}", f.kind, peer_name_));
    }
}

SKEIN_INLINE void link::deliver(const frame_view& f) {
    if (handler_) {
        call_handler(f);
        return;
    }
    frame kept{f.kind, f.flags, f.id, f.take_body()};
    waiting_bytes_ += kept.body.size() + frame_header::bytes;
    waiting_.push_back(std::move(kept));
    if (waiting_bytes_ > options_.bounds.max_receive_queue && !full_) {
        full_ = true;
        if (connected_) connection_->pause_reading();
    }
    receivers_.wake_one();
}

/// Keeps the handler alive while it runs, also when it sets another one.
SKEIN_INLINE void link::call_handler(const frame_view& f) {
    struct running {
        explicit running(link& of) noexcept : l(of) { of.in_handler_ = true; }
        running(const running&) = delete;
        ~running() {
            l.in_handler_ = false;
            if (std::exchange(l.replaced_, false)) l.handler_ = std::move(l.replacement_);
        }
        link& l;
    } guard(*this);
    handler_(f);
}

SKEIN_INLINE task<std::optional<frame>> link::receive() {
    const auto keep = self_;
    while (waiting_.empty()) {
        if (failure_) throw *failure_;
        if (got_fin_ || state_ == state::ended) co_return std::nullopt;
        auto more = receivers_.wait();
        co_await more;
    }
    std::optional<frame> next(std::move(waiting_.front()));
    waiting_.pop_front();
    waiting_bytes_ -= next->body.size() + frame_header::bytes;
    if (full_ && waiting_bytes_ <= options_.bounds.max_receive_queue / 2) {
        full_ = false;
        if (!paused_ && connected_) connection_->resume_reading();
    }
    if (!waiting_.empty()) receivers_.wake_one(); // a wake that a cancelled receiver took with it
    co_return next;
}

SKEIN_INLINE void link::set_handler(unique_function<void(const frame_view&)> handler) {
    const auto keep = self_;
    if (in_handler_) {
        replacement_ = std::move(handler);
        replaced_ = true;
        return;
    }
    handler_ = std::move(handler);
    try {
        while (handler_ && !waiting_.empty()) {
            frame f = std::move(waiting_.front());
            waiting_.pop_front();
            waiting_bytes_ -= f.body.size() + frame_header::bytes;
            call_handler({f.kind, f.flags, f.id, f.body, &f.body});
        }
    } catch (...) {
        end(to_error(std::current_exception()), link_end::here);
    }
    if (waiting_.empty() && std::exchange(full_, false) && !paused_ && connected_) {
        connection_->resume_reading();
    }
}

SKEIN_INLINE void link::pause_reading() noexcept {
    paused_ = true;
    if (connected_) connection_->pause_reading();
}

SKEIN_INLINE void link::resume_reading() noexcept {
    if (std::exchange(paused_, false) && !full_ && connected_) connection_->resume_reading();
}

// --- the end ----------------------------------------------------------------------------------

SKEIN_INLINE void link::begin_close() noexcept {
    if (state_ != state::open) return;
    state_ = state::closing;
    sent_fin_ = true;
    room_.wake_all();
    try {
        if (resumes_) {
            window_.push(detail::link_fin_kind, 0, 0, {}, {});
            push_on();
        } else if (connected_) {
            connection_->send(detail::link_fin_kind, 0, 0, {});
        }
    } catch (...) {
        break_off(to_error(std::current_exception()));
    }
}

/// Both sides have said that no more comes, and both have it all.
SKEIN_INLINE bool link::is_concluded() const noexcept {
    return sent_fin_ && got_fin_ && window_.messages() == 0;
}

/// When all is done, the connection is closed; its goodbyes are the end.
SKEIN_INLINE void link::settle() {
    if (state_ != state::closing || finishing_ || !connected_ || !is_concluded()) return;
    finishing_ = true;
    spawn(finish(connection_));
}

SKEIN_INLINE task<void> link::finish(connection::handle over) {
    auto closing = over->close(); // on_connection_end says what came of it
    co_await closing;
}

SKEIN_INLINE task<void> link::close() {
    const auto keep = self_;
    begin_close();
    if (paused_ || full_) { // what the peer still sends is not wanted, its goodbye is
        handler_ = [](const frame_view&) {};
        waiting_.clear();
        waiting_bytes_ = 0;
        paused_ = full_ = false;
        if (connected_) connection_->resume_reading();
    }
    const duration limit =
        options_.bounds.close_deadline + (resumes_ ? how_.resume_within : duration(0));
    try {
        auto ending = with_timeout(wait_closed(), limit);
        co_await ending;
    } catch (const error& e) {
        const bool cancelled = e.code() == errc::cancelled;
        const auto left = window_.messages();
        end(error(cancelled ? errc::cancelled : errc::timeout,
                  fmt::format("close of the link to {} {}, {} messages were not confirmed",
                              peer_name_, cancelled ? "was cancelled" : "took too long", left)),
            link_end::here);
    }
    try {
        auto joining = shield(tasks_.join());
        co_await joining;
    } catch (const std::exception&) { // the tasks report through end()
    }
}

SKEIN_INLINE void link::say_farewell(std::uint64_t verdict, const std::string& why) noexcept {
    if (!connected_ || !connection_->is_open()) return;
    try {
        const auto over = connection_;
        over->send(detail::link_farewell_kind, 0, verdict,
                   as_bytes(std::string_view(why).substr(0, 1024)));
        over->flush();
    } catch (const std::exception&) { // it is a courtesy
    }
}

SKEIN_INLINE void link::abort(error why) noexcept {
    if (state_ == state::ended) return;
    const auto keep = self_;
    say_farewell(static_cast<std::uint64_t>(detail::link_verdict::ended), why.text());
    end(std::move(why), link_end::here);
}

SKEIN_INLINE void link::declare_dead(std::string why) noexcept {
    if (state_ == state::ended) return;
    const auto keep = self_;
    say_farewell(static_cast<std::uint64_t>(detail::link_verdict::dead), why);
    end(error(errc::peer_lost, peer_name_ + " was declared dead").with_cause(std::move(why)),
        link_end::declared_dead);
}

SKEIN_INLINE void link::end(std::optional<error> why, link_end how) noexcept {
    if (state_ == state::ended) return;
    const auto keep = self_;
    state_ = state::ended;
    ending_ = how;
    if (why) failure_ = std::move(*why);
    deadline_.cancel();
    ack_timer_.cancel();
    connected_ = false;
    if (connection_) {
        connection_->set_closed_handler(nullptr);
        connection_->abort(failure_ ? *failure_ : error(errc::closed, "the link has ended"));
        loop_.post([last = std::move(connection_)] {}); // it may be calling us
    }
    if (books_) books_->leave(*this);
    window_.clear();
    tasks_.cancel();
    room_.wake_all();
    receivers_.wake_all();
    ended_.set();
    if (auto told = std::move(closed_handler_)) {
        closed_handler_ = nullptr;
        try {
            told(failure_ ? &*failure_ : nullptr);
        } catch (const std::exception& e) {
            logging::error("net", "closed handler failed", {{"what", e.what()}});
        }
    }
    if (parts_ == 0) release();
}

SKEIN_INLINE void link::set_closed_handler(unique_function<void(const error*)> handler) {
    if (state_ == state::ended) {
        if (handler) handler(failure_ ? &*failure_ : nullptr);
        return;
    }
    closed_handler_ = std::move(handler);
}

SKEIN_INLINE task<void> link::wait_closed() {
    const auto keep = self_;
    auto ended = ended_.wait();
    co_await ended;
}

/// Runs work as a part of the link, which lives until all of them have ended.
SKEIN_INLINE void link::spawn(task<void> work) {
    if (state_ == state::ended) return;
    ++parts_;
    tasks_.spawn(part(self_, std::move(work)));
}

SKEIN_INLINE task<void> link::part(core self, task<void> work) {
    try {
        co_await work;
    } catch (...) {
        const error why = to_error(std::current_exception());
        if (why.code() != errc::cancelled) self->end(why, link_end::here);
    }
    work = {};
    if (--self->parts_ == 0 && self->state_ == state::ended) self->release();
}

/// The link lets itself go when its scope has seen the end of the last task.
SKEIN_INLINE void link::release() noexcept {
    loop_.post([last = std::move(self_)] {
        if (last) last->handler_ = nullptr;
    });
}

} // namespace skein::net

// ======== skein/net/detail/link_resume.ipp
// How a net::link gets its connections: the first one, and another after each break. Comes after
// detail/link.ipp.


#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

namespace detail {

SKEIN_INLINE std::uint64_t draw_number(random_source& random) {
    for (;;) {
        if (const auto n = random.next()) return n;
    }
}

} // namespace detail

SKEIN_INLINE link::link(connection_options options, link_options how, bool dialling)
    : loop_(loop::current()), options_(std::move(options)), how_(how), dialling_(dialling),
      ours_(how.incarnation != 0 ? how.incarnation : detail::draw_number(loop_.random())) {}

SKEIN_INLINE link::handle link::handle_of(core made) {
    link* const raw = made.get();
    return handle(raw, [made = std::move(made)](link* l) {
        l->closed_handler_ = nullptr;
        l->abort(error(errc::closed, "the link was dropped without close()"));
    });
}

/// What is known after the first greeting.
SKEIN_INLINE void link::begin(const identity& peer, std::string name, std::uint64_t incarnation,
                              bool resumes, std::uint64_t window_messages,
                              std::uint64_t window_bytes) {
    answered_ = true;
    peer_ = peer;
    peer_name_ = std::move(name);
    theirs_ = incarnation;
    resumes_ = resumes;
    // The peer must hear of its messages long before its window is full.
    ack_messages_ = std::clamp<std::uint64_t>(window_messages / 4, 1, how_.ack_messages);
    ack_bytes_ =
        static_cast<std::size_t>(std::clamp<std::uint64_t>(window_bytes / 4, 1, how_.ack_bytes));
}

// --- the dialling side ------------------------------------------------------------------------

SKEIN_INLINE task<link::handle> link::connect(network& via, address to, connection_options options,
                                              link_options how) {
    const core made(new link(std::move(options), how, true));
    made->via_ = &via;
    made->to_ = std::move(to);
    made->number_ = detail::draw_number(made->loop_.random());
    made->peer_name_ = to_string(made->to_);
    made->self_ = made;
    const handle out = handle_of(made); // a failure drops it
    auto dialing = made->dial_first(made);
    co_await dialing;
    co_return out;
}

SKEIN_INLINE task<void> link::dial_first(core self) {
    const auto& policy = how_.first;
    for (int tries = 1;; ++tries) {
        std::optional<error> fault;
        try {
            auto once =
                dial_once(self, policy.connect_timeout + options_.bounds.handshake_deadline);
            co_await once;
            co_return;
        } catch (const error& e) {
            fault = e;
        }
        const auto pause = policy.delay(tries, loop_.random());
        const bool no_more = policy.max_tries != 0 && tries >= policy.max_tries;
        if (no_more || state_ == state::ended || !policy.worth_another(fault->code()) ||
            deadline_after(loop_.now(), pause) >= policy.until) {
            throw *fault;
        }
        auto sleeping = sleep_for(pause);
        co_await sleeping;
    }
}

SKEIN_INLINE detail::link_hello link::hello() const {
    detail::link_hello h;
    h.from = ours_;
    h.to = theirs_ != 0 ? theirs_ : how_.expect;
    h.number = number_;
    h.generation = generation_;
    h.received = received_;
    h.window_messages = how_.window_messages;
    h.window_bytes = how_.window_bytes;
    h.fresh = !answered_;
    return h;
}

/// Dials, says hello, and takes the answer.
SKEIN_INLINE task<void> link::dial_once(core self, duration limit) {
    link& l = *self;
    const auto until = deadline_after(l.loop_.now(), limit);
    ++l.generation_;
    auto dialing = with_deadline(dial(*l.via_, l.to_, l.options_), until);
    auto made = co_await dialing;
    const bool local = made.stream->is_local();
    const auto over = connection::over(std::move(made.stream), l.options_, std::move(made.peer));
    auto h = l.hello();
    h.resume = l.answered_ ? l.resumes_
                           : l.how_.resume == resume_mode::on ||
                                 (l.how_.resume == resume_mode::automatic && !local);
    over->send(detail::link_hello_kind, 0, 0, wire::encode(h));
    auto waiting = with_deadline(over->receive(), until);
    const auto first = co_await waiting;
    if (!first) throw error(errc::reset, over->peer_name() + " said goodbye instead of hello");
    auto answer = detail::read_greeting<detail::link_answer>(*first);
    if (!answer) {
        over->abort(answer.error());
        throw answer.error();
    }
    l.take_answer(*answer, over);
}

namespace detail {

/// What an answer means for the link that asked.
SKEIN_INLINE link_end end_of(link_verdict v) noexcept {
    switch (v) {
    case link_verdict::restarted: return link_end::restarted;
    case link_verdict::forgotten: return link_end::forgotten;
    case link_verdict::closed:
    case link_verdict::ended: return link_end::by_peer;
    case link_verdict::dead: return link_end::declared_dead;
    case link_verdict::no_place:
    case link_verdict::not_allowed: return link_end::refused;
    case link_verdict::good:
    case link_verdict::stale: break;
    }
    return link_end::none;
}

SKEIN_INLINE error error_of(const link_answer& a, const std::string& peer) {
    const auto make = [&](errc code, std::string_view text) {
        error e(code, fmt::format("{} {}", peer, text));
        if (!a.why.empty()) e.with_cause(a.why);
        return e;
    };
    switch (static_cast<link_verdict>(a.verdict)) {
    case link_verdict::stale: return make(errc::reset, "knows a newer connection of this link");
    case link_verdict::restarted:
        return make(errc::peer_lost, "is another process than before: the one we knew has ended")
            .with_hint("it was started again, or another program listens there now");
    case link_verdict::forgotten:
        return make(errc::peer_lost, "has forgotten the link")
            .with_hint("it waited for us for as long as its options say, then it gave us up");
    case link_verdict::closed: return make(errc::reset, "has closed the link");
    case link_verdict::ended: return make(errc::reset, "has ended the link");
    case link_verdict::dead: return make(errc::peer_lost, "has declared this process dead");
    case link_verdict::no_place: return make(errc::exhausted, "has no place for another link");
    default: return make(errc::refused, "refuses the link");
    }
}

} // namespace detail

SKEIN_INLINE void link::take_answer(const detail::link_answer& a, connection::handle over) {
    if (state_ == state::ended) throw error(errc::closed, "the link has ended");
    const auto verdict = static_cast<detail::link_verdict>(a.verdict);
    const bool good = verdict == detail::link_verdict::good;
    const bool other = answered_ && a.incarnation != theirs_;
    generation_ = std::max(generation_, a.generation);
    // The peer may have ended the link in order before we heard of it.
    if (verdict == detail::link_verdict::closed && answered_ && !other &&
        window_.acknowledge(a.received) && is_concluded()) {
        end(std::nullopt, link_end::orderly);
        return;
    }
    if (!good || other) {
        detail::link_answer told = a;
        if (other) told.verdict = static_cast<std::uint8_t>(detail::link_verdict::restarted);
        const error why = detail::error_of(told, over->peer_name());
        const auto how = detail::end_of(static_cast<detail::link_verdict>(told.verdict));
        over->abort(why);
        if (how != link_end::none && answered_) {
            is_concluded() ? end(std::nullopt, link_end::orderly) : end(why, how);
        }
        throw why;
    }
    if (!window_.can_acknowledge(a.received)) {
        error why(errc::malformed,
                  fmt::format("{} has {} messages of a link; {} were sent, {} confirmed",
                              over->peer_name(), a.received, window_.pushed(),
                              window_.acknowledged()));
        over->abort(why);
        end(why, link_end::refused);
        throw why;
    }
    if (!answered_) {
        begin(over->peer(), over->peer_name(), a.incarnation, a.resume, a.window_messages,
              a.window_bytes);
    }
    attach(std::move(over), a.received);
}

SKEIN_INLINE task<void> link::dial_again(core self) {
    link& l = *self;
    reconnect_policy pauses = l.how_.first;
    pauses.most_delay = std::min<duration>(pauses.most_delay, l.how_.resume_within / 8);
    for (int tries = 1; l.state_ != state::ended && !l.connected_; ++tries) {
        std::optional<error> fault;
        try {
            auto once = dial_once(self, l.how_.attempt_timeout);
            co_await once;
            if (!l.connected_) continue;
            break;
        } catch (const error& e) {
            fault = e;
        }
        if (l.state_ == state::ended) break;
        if (fault->code() == errc::permission_denied || fault->code() == errc::mismatch) {
            l.end(error(errc::peer_lost, "another process answers for " + l.peer_name_)
                      .with_cause(fault->what()),
                  link_end::restarted);
            break;
        }
        l.break_ = *fault;
        auto pause = sleep_for(pauses.delay(tries, l.loop_.random()));
        co_await pause;
    }
    l.dialing_again_ = false;
}

// --- both sides -------------------------------------------------------------------------------

/// From now on the link lives on this connection; the one before, if it lives, is cut off.
SKEIN_INLINE void link::attach(connection::handle over, std::uint64_t peer_has) {
    const auto keep = self_;
    if (connection_) {
        connection_->set_closed_handler(nullptr);
        connection_->abort(error(errc::reset, "a newer connection has taken its place"));
        loop_.post([last = std::move(connection_)] {});
    }
    deadline_.cancel();
    connection_ = std::move(over);
    connected_ = true;
    finishing_ = false;
    if (break_) ++statistics_.resumes;
    break_.reset();
    told_ = received_; // the greeting has said it
    untold_bytes_ = 0;
    if (resumes_) {
        const bool sound = window_.acknowledge(peer_has);
        SKEIN_CHECK(sound, "{} of {} messages", peer_has, window_.pushed());
        window_.rewind();
        statistics_.sent_again += window_.messages();
    }
    const std::uint64_t mine = generation_;
    if (paused_ || full_) connection_->pause_reading();
    const auto now = connection_; // a handler may end or replace it
    now->set_closed_handler(
        [self = keep, mine](const error* why) { self->on_connection_end(mine, why); });
    now->set_handler([self = keep, mine](const frame_view& f) {
        if (self->connected_ && self->generation_ == mine) self->on_frame(f);
    });
    if (!connected_ || connection_ != now) return;
    push_on();
    room_.wake_all();
    settle();
}

SKEIN_INLINE void link::on_connection_end(std::uint64_t generation, const error* why) noexcept {
    if (generation != generation_ || !connected_ || state_ == state::ended) return;
    break_off(why != nullptr ? *why
                             : error(errc::reset, peer_name_ + " has closed the connection"));
}

/// The connection is gone. Whoever has everything ends; the others wait for a new one.
SKEIN_INLINE void link::break_off(error why) noexcept {
    if (state_ == state::ended || !connected_) return;
    const auto keep = self_;
    const bool clean = connection_->failure() == std::nullopt && !connection_->is_open();
    connected_ = false;
    finishing_ = false;
    if (is_concluded() && (clean || !resumes_ || !dialling_)) {
        end(std::nullopt, link_end::orderly);
        return;
    }
    if (!resumes_) {
        end(std::move(why), link_end::broken);
        return;
    }
    ++statistics_.breaks;
    connection_->set_closed_handler(nullptr);
    connection_->abort(why);
    break_ = std::move(why);
    loop_.set_timer(deadline_, deadline_after(loop_.exact_now(), how_.resume_within));
    room_.wake_all();
    if (dialling_) {
        if (!std::exchange(dialing_again_, true)) spawn(dial_again(self_));
    } else if (!books_ || !books_->wait_for(*this)) {
        end(error(errc::peer_lost, "the connection to " + peer_name_ + " broke")
                .with_cause(break_->what()),
            link_end::broken);
    }
}

SKEIN_INLINE void link::come_back_too_late() noexcept {
    const auto keep = self_;
    if (is_concluded()) {
        end(std::nullopt, link_end::orderly);
        return;
    }
    error why(errc::peer_lost, fmt::format("{} did not come back within {:.3g} s", peer_name_,
                                           to_seconds(how_.resume_within)));
    if (break_) why.with_cause(break_->what());
    why.with_hint("its process or host is gone, or the network between is");
    end(std::move(why), link_end::deadline);
}

} // namespace skein::net

// ======== skein/net/link_endpoint.hpp
// The accepting side of links: a table that gives returning peers back to their links, and a whole server.
//
//     net::link_endpoint server(network, net::address::tcp("127.0.0.1", 0), options);
//     auto serving = server.serve([](net::link::handle l) { return talk(std::move(l)); });
//
// A peer is authenticated on every connection. A hello of an older generation than the present connection's
// is refused; one of a newer generation takes its place.


#include <cstddef>
#include <cstdint>
#include <memory>

namespace skein::net {

namespace detail {
class link_books;
}

/// How many links a table takes.
struct link_table_bounds {
    std::size_t most_links = 4096;
    std::size_t most_waiting =
        1024; ///< for their peers to come back; beyond, the oldest is given up
};

/// The links of one accepting process. Links may outlive it; then a broken connection ends them.
class link_table {
public:
    explicit link_table(connection_options options, link_options how = {},
                        link_table_bounds bounds = {});
    link_table(const link_table&) = delete;
    link_table& operator=(const link_table&) = delete;
    ~link_table();

    /// Reads the hello on a fresh connection and answers it.
    ///   result  a new link; nothing when the connection went to a link that is known, or was refused
    ///   errors  those of connection::receive; malformed, mismatch, too_large (no hello), timeout
    [[nodiscard]] task<link::handle> admit(connection::handle over);

    /// Of this process, as links tell it to their peers.
    [[nodiscard]] std::uint64_t incarnation() const noexcept;
    [[nodiscard]] std::size_t links() const noexcept;
    /// Links whose peer may come back.
    [[nodiscard]] std::size_t waiting() const noexcept;
    /// Hellos so far that were refused, and those that a link has resumed with.
    [[nodiscard]] std::uint64_t refused() const noexcept;
    [[nodiscard]] std::uint64_t resumed() const noexcept;

private:
    std::shared_ptr<detail::link_books> books_;
};

/// Listens and serves links until it is closed or cancelled.
class link_endpoint {
public:
    using handler = unique_function<task<void>(link::handle)>;

    /// Binds at once.
    ///   errors  those of network::listen; permission_denied: an address that other hosts can reach
    ///           without a token
    link_endpoint(network& via, const address& at, connection_options options,
                  link_options how = {}, link_table_bounds links = {},
                  acceptor_options bounds = {});
    ~link_endpoint();

    [[nodiscard]] address local() const { return door_.local(); }
    [[nodiscard]] link_table& table() noexcept { return table_; }

    /// Accepts until close(). Every new link gets a task of `serve_one` in the scope of this call, and is
    /// closed when that ends; an error of one is logged and ends that one only. Returns when all ended.
    ///   errors  as endpoint::serve
    [[nodiscard]] task<void> serve(handler serve_one);

    /// Stops accepting; links that are served go on, until their connection breaks.
    void close() noexcept { door_.close(); }

private:
    static task<void> one(link_endpoint* self, std::unique_ptr<stream> from, admission* place);

    connection_options options_;
    acceptor door_;
    link_table table_;
    handler handler_;
};

} // namespace skein::net


// ======== skein/net/detail/link_endpoint.ipp
// Who a hello belongs to, and what it is told.


#include <exception>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace skein::net {
namespace detail {

SKEIN_INLINE link_books::link_books(connection_options options, link_options how,
                                    std::size_t most_links, std::size_t most_waiting,
                                    std::uint64_t incarnation)
    : options_(std::move(options)), how_(how), most_links_(most_links), most_waiting_(most_waiting),
      incarnation_(incarnation) {
    how_.incarnation = incarnation;
}

SKEIN_INLINE link_answer link_books::answer(link_verdict verdict, std::string why) const {
    link_answer a;
    a.verdict = static_cast<std::uint8_t>(verdict);
    a.incarnation = incarnation_;
    a.window_messages = how_.window_messages;
    a.window_bytes = how_.window_bytes;
    a.why = std::move(why);
    return a;
}

SKEIN_INLINE link_answer link_books::judge(const connection& over, const link_hello& h,
                                           link* known) const {
    if (h.to != 0 && h.to != incarnation_) return answer(link_verdict::restarted);
    if (known == nullptr) {
        if (const auto found = epitaphs_.find({h.from, h.number}); found != epitaphs_.end()) {
            auto a = answer(found->second.verdict, found->second.why);
            a.received = found->second.received;
            a.generation = found->second.generation;
            return a;
        }
        if (!h.fresh) return answer(link_verdict::forgotten);
        if (h.received != 0) return answer(link_verdict::not_allowed, "messages of a new link");
        if (shut_) return answer(link_verdict::no_place, "it is closing");
        if (links_.size() >= most_links_) {
            return answer(link_verdict::no_place, fmt::format("{} are there", links_.size()));
        }
        return answer(link_verdict::good);
    }
    auto a = answer(link_verdict::good);
    a.generation = known->generation_;
    a.received = known->received_;
    a.resume = known->resumes_;
    const auto refuse = [&](link_verdict v, std::string why) {
        a.verdict = static_cast<std::uint8_t>(v);
        a.why = std::move(why);
    };
    if (h.generation <= known->generation_) {
        refuse(link_verdict::stale,
               fmt::format("generation {} after {}", h.generation, known->generation_));
    } else if (over.peer().name != known->peer_.name) {
        refuse(link_verdict::not_allowed, "the link is that of " + known->peer_name_);
    } else if (!known->resumes_ || !known->window_.can_acknowledge(h.received) ||
               (h.fresh && known->received_ != 0)) {
        refuse(link_verdict::not_allowed,
               fmt::format("{} messages received of {} sent, {} confirmed", h.received,
                           known->window_.pushed(), known->window_.acknowledged()));
    }
    return a;
}

SKEIN_INLINE link::handle link_books::admit(connection::handle over, const link_hello& h,
                                            bool& refused) {
    forget_old();
    if (!over->is_open()) { // it has ended behind its hello: nothing may change for that
        throw over->failure().value_or(error(errc::reset, over->peer_name() + " has left"));
    }
    const auto found = links_.find({h.from, h.number});
    link* const known = found == links_.end() ? nullptr : found->second;
    const auto keep = known != nullptr ? known->self_ : nullptr;
    auto a = judge(*over, h, known);
    if (static_cast<link_verdict>(a.verdict) != link_verdict::good) {
        ++refused_;
        refused = true;
        over->send(link_answer_kind, 0, 0, wire::encode(a));
        return nullptr;
    }
    if (known == nullptr) return make(std::move(over), h);
    ++resumed_;
    a.generation = known->generation_ = h.generation;
    if (known->connected_) {
        ++known->statistics_.breaks;
        known->break_ = error(errc::reset, "the peer has dialled again");
    }
    over->send(link_answer_kind, 0, 0, wire::encode(a));
    known->attach(std::move(over), h.received);
    return nullptr;
}

SKEIN_INLINE link::handle link_books::make(connection::handle over, const link_hello& h) {
    const link::core made(new link(options_, how_, false));
    made->self_ = made;
    made->books_ = shared_from_this();
    made->number_ = h.number;
    made->generation_ = h.generation;
    const bool resumes = h.resume && (how_.resume == resume_mode::on ||
                                      (how_.resume == resume_mode::automatic && !over->is_local()));
    made->begin(over->peer(), over->peer_name(), h.from, resumes, h.window_messages,
                h.window_bytes);
    links_.emplace(key(h.from, h.number), made.get());
    auto a = answer(link_verdict::good);
    a.generation = h.generation;
    a.resume = resumes;
    over->send(link_answer_kind, 0, 0, wire::encode(a));
    auto out = link::handle_of(made);
    made->attach(std::move(over), 0);
    return out;
}

SKEIN_INLINE void link_books::leave(link& l) noexcept {
    const key k(l.theirs_, l.number_);
    const auto found = links_.find(k);
    if (found == links_.end() || found->second != &l) return;
    links_.erase(found);
    const bool closed = l.ending_ == link_end::orderly;
    const bool dead = l.ending_ == link_end::declared_dead;
    epitaph e{closed ? link_verdict::closed
              : dead ? link_verdict::dead
                     : link_verdict::ended,
              l.received_, l.generation_, l.failure_ ? l.failure_->what() : "",
              deadline_after(l.loop_.now(), 4 * how_.resume_within)};
    if (dead && l.failure_) e.why = l.failure_->cause();
    if (e.why.size() > 1024) e.why.resize(1024);
    try {
        epitaphs_.insert_or_assign(k, std::move(e));
        order_.push_back(k);
        if (order_.size() > most_epitaphs) {
            epitaphs_.erase(order_.front());
            order_.pop_front();
        }
    } catch (const std::bad_alloc&) { // then it is forgotten
    }
}

SKEIN_INLINE void link_books::forget_old() noexcept {
    const auto now = loop::current().now();
    while (!order_.empty()) {
        const auto first = epitaphs_.find(order_.front());
        if (first != epitaphs_.end() && first->second.until > now) return;
        if (first != epitaphs_.end()) epitaphs_.erase(first);
        order_.pop_front();
    }
}

SKEIN_INLINE std::size_t link_books::waiting() const noexcept {
    std::size_t n = 0;
    for (const auto& [k, l] : links_) n += !l->connected_;
    return n;
}

SKEIN_INLINE bool link_books::wait_for(link& l) {
    if (shut_) return false;
    std::erase(broken_, key(l.theirs_, l.number_));
    broken_.emplace_back(l.theirs_, l.number_);
    const auto is_waiting = [&](const key& k) {
        const auto found = links_.find(k);
        return found != links_.end() && !found->second->connected_;
    };
    if (broken_.size() <= most_waiting_) return true;
    std::erase_if(broken_, [&](const key& k) { return !is_waiting(k); });
    while (broken_.size() > most_waiting_) { // each once, and each of them waits
        link* const oldest = links_.find(broken_.front())->second;
        broken_.pop_front();
        oldest->end(error(errc::exhausted,
                          fmt::format("more than {} links wait for their peers; that of {} has "
                                      "waited longest",
                                      most_waiting_, oldest->peer_name_)),
                    link_end::deadline);
    }
    return l.state_ != link::state::ended;
}

} // namespace detail

SKEIN_INLINE link_table::link_table(connection_options options, link_options how,
                                    link_table_bounds bounds) {
    const std::uint64_t mine =
        how.incarnation != 0 ? how.incarnation : detail::draw_number(loop::current().random());
    books_ = std::make_shared<detail::link_books>(std::move(options), how, bounds.most_links,
                                                  bounds.most_waiting, mine);
}
SKEIN_INLINE link_table::~link_table() { books_->shut(); }

SKEIN_INLINE std::uint64_t link_table::incarnation() const noexcept {
    return books_->incarnation();
}
SKEIN_INLINE std::size_t link_table::links() const noexcept { return books_->links(); }
SKEIN_INLINE std::size_t link_table::waiting() const noexcept { return books_->waiting(); }
SKEIN_INLINE std::uint64_t link_table::refused() const noexcept { return books_->refused(); }
SKEIN_INLINE std::uint64_t link_table::resumed() const noexcept { return books_->resumed(); }

SKEIN_INLINE task<link::handle> link_table::admit(connection::handle over) {
    const auto books = books_;
    auto reading = with_timeout(over->receive(), books->hello_deadline());
    const auto first = co_await reading;
    if (!first) throw error(errc::reset, over->peer_name() + " said goodbye instead of hello");
    const auto hello = detail::read_greeting<detail::link_hello>(*first);
    if (!hello) throw hello.error();
    bool refused = false;
    auto made = books->admit(over, *hello, refused);
    if (refused) {
        auto closing = over->close();
        co_await closing;
    }
    co_return made;
}

SKEIN_INLINE link_endpoint::link_endpoint(network& via, const address& at,
                                          connection_options options, link_options how,
                                          link_table_bounds links, acceptor_options bounds)
    : options_(std::move(options)),
      door_(via, detail::check_guarded(at, options_.secret), detail::without_deadline(bounds)),
      table_(options_, how, links) {}
SKEIN_INLINE link_endpoint::~link_endpoint() = default;

SKEIN_INLINE task<void> link_endpoint::serve(handler serve_one) {
    handler_ = std::move(serve_one);
    return door_.serve([this](std::unique_ptr<stream> from, admission* place) {
        return one(this, std::move(from), place);
    });
}

SKEIN_INLINE task<void> link_endpoint::one(link_endpoint* self, std::unique_ptr<stream> from,
                                           admission* place) {
    auto* cancel = co_await skein::detail::current_cancel{};
    link::handle l;
    {
        auto greeting = connection::accept(std::move(from), self->options_);
        const connection::handle c = co_await greeting;
        place->authenticated();
        auto admitting = self->table_.admit(c);
        l = co_await admitting;
    }
    if (!l) co_return;
    std::optional<error> fault;
    try {
        auto serving = self->handler_(l);
        co_await serving;
    } catch (...) {
        fault = to_error(std::current_exception());
    }
    if (fault) l->abort(*fault);
    auto closing = shield(l->close());
    co_await closing;
    if (!fault) co_return;
    if (fault->code() == errc::cancelled && cancel != nullptr && cancel->requested()) throw *fault;
    logging::warn("net", "link failed", {{"peer", l->peer_name()}, {"why", fault->what()}});
}

} // namespace skein::net

// ======== skein/net/offload.hpp
// Work that would block the loop (a file, a long computation) on a small pool of threads.
//
//     auto sum = net::offload([data] { return checksum(data); });
//     auto value = co_await sum;           // resumed on the loop it was called from
//
// On a simulated loop the work runs inline and its end comes after a drawn time.


#include <concepts>
#include <condition_variable>
#include <coroutine>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::net {

/// A pool of threads for blocking work. The destructor waits for the work in it.
class offload_pool {
public:
    explicit offload_pool(unsigned threads);
    offload_pool(const offload_pool&) = delete;
    offload_pool& operator=(const offload_pool&) = delete;
    ~offload_pool();

    /// Thread-safe.
    void submit(unique_function<void()> work);

    /// The process's own pool: as many threads as there are cores, two at least, made when first used.
    static offload_pool& shared();

private:
    void main();

    std::mutex mutex_; // guards queue_ and stopping_
    std::condition_variable wake_;
    std::deque<unique_function<void()>> queue_;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

namespace detail {

/// Suspends until the pool has run the call. Not cancellable: the work refers to the frame.
class pool_wait : public waiter {
public:
    pool_wait(offload_pool& pool, unique_function<void()> call)
        : pool_(pool), call_(std::move(call)) {}
    bool await_ready() const noexcept { return false; }
    template <skein::detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        (void)arm(h, false);
        loop* const home = &loop::current();
        pool_.submit([this, home] {
            call_();
            home->post_from_any_thread([this] { wake(); });
        });
        return true;
    }
    void await_resume() const noexcept {}

private:
    offload_pool& pool_;
    unique_function<void()> call_;
};

task<void> pause(duration length);

} // namespace detail

/// Runs f on a thread of the pool; gives its result or rethrows its exception.
///   f       must not touch the loop's objects; it is destroyed on the loop's thread
///   errors  those of f. A cancelled task still waits for the end of f, then throws cancelled at its
///           next await
///   resumes the caller, on its own loop
template <class F>
    requires std::invocable<F&>
[[nodiscard]] task<std::invoke_result_t<F&>> offload(F f, offload_pool* pool = nullptr) {
    using T = std::invoke_result_t<F&>;
    std::exception_ptr failure;
    std::conditional_t<std::is_void_v<T>, std::optional<bool>, std::optional<T>> value;
    const auto work = [&f, &value, &failure] {
        try {
            if constexpr (std::is_void_v<T>) {
                f();
                value = true;
            } else {
                value.emplace(f());
            }
        } catch (...) {
            failure = std::current_exception();
        }
    };
    if (const auto length = loop::current().simulated_work_time()) {
        work();
        auto pausing = detail::pause(*length);
        auto shielded = shield(std::move(pausing));
        co_await shielded;
    } else {
        detail::pool_wait done(pool != nullptr ? *pool : offload_pool::shared(), work);
        co_await done;
    }
    if (failure) std::rethrow_exception(std::move(failure));
    if constexpr (!std::is_void_v<T>) co_return std::move(*value);
}

} // namespace skein::net


// ======== skein/net/detail/offload.ipp
// The threads of an offload_pool.


#include <algorithm>

#include <pthread.h>
#include <signal.h>

namespace skein::net {

SKEIN_INLINE offload_pool::offload_pool(unsigned threads) {
    SKEIN_CHECK(threads > 0, "an offload pool needs a thread");
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { main(); });
}

SKEIN_INLINE offload_pool::~offload_pool() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (auto& t : threads_) t.join();
}

SKEIN_INLINE void offload_pool::submit(unique_function<void()> work) {
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(work));
    }
    wake_.notify_one();
}

SKEIN_INLINE offload_pool& offload_pool::shared() {
    static offload_pool pool(static_cast<unsigned>(std::max(2, available_cores())));
    return pool;
}

SKEIN_INLINE void offload_pool::main() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        auto work = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        work();
        work = nullptr;
        lock.lock();
    }
}

SKEIN_INLINE task<void> detail::pause(duration length) {
    auto sleeping = sleep_for(length);
    co_await sleeping;
}

} // namespace skein::net

// ======== skein/net/requests.hpp
// Typed requests between two processes, over a link or a connection.
//
//     struct sum_request { static constexpr std::uint16_t number = 1; std::vector<int> items; };
//     struct sum_reply   { static constexpr std::uint16_t number = 2; int sum = 0; };
//
//     auto service = std::make_shared<net::request_service>();
//     service->on<sum_request, sum_reply>(&add_up);     // task<sum_reply> add_up(sum_request, net::caller)
//     auto r = net::requests::over(link, service);       // both sides may call
//     auto asking = r->call<sum_reply>(sum_request{{1, 2, 3}});
//     const auto reply = co_await asking;
//
// Each call gives exactly one of reply and error. A handler is cancelled when its caller cancels, its
// deadline passes, or the link has ended. Messages above request_options::control_bytes leave in chunks, so
// that small ones overtake them: messages keep their order only among small ones and among large ones.


#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

/// An aggregate with a number, which is the same in all programs that speak of it.
template <class T>
concept message = wire::encodable<T> && requires {
    { T::number } -> std::convertible_to<std::uint16_t>;
};

/// All messages of a protocol in one place: numbers are unique, and every decoder can be reached by number.
template <message... Messages>
struct message_table {
    static constexpr std::array<std::uint16_t, sizeof...(Messages)> numbers{Messages::number...};

    /// Decodes a body as the message of that number.
    ///   errors  not_found (no such number), those of wire::decode
    [[nodiscard]] static result<void> check(std::uint16_t number, byte_span body) {
        static_assert(are_unique(), "two messages of a table have one number");
        result<void> out(
            error(errc::not_found, fmt::format("no message has the number {}", number)));
        (void)((number == Messages::number && (out = check_one<Messages>(body), true)) || ...);
        return out;
    }

private:
    static consteval bool are_unique() {
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            for (std::size_t k = 0; k < i; ++k) {
                if (numbers[i] == numbers[k]) return false;
            }
        }
        return true;
    }
    template <class T>
    static result<void> check_one(byte_span body) {
        auto read = wire::decode<T>(body);
        if (!read) return read.error();
        return {};
    }
};

/// What a request layer asks of itself and of its peer.
struct request_options {
    std::size_t control_bytes = std::size_t{64}
                                << 10; ///< larger messages leave in chunks; at most 1 MiB
    std::size_t chunk_bytes = std::size_t{1} << 20;  ///< at most 4 MiB
    std::size_t most_message = std::size_t{1} << 30; ///< of one message, each way
    std::size_t most_running = 1024;                 ///< handlers of one peer at a time
};

/// Numbers for calls that may be repeated, on this link or on another one, and run once. One per process;
/// the loop's thread only.
class request_keys {
public:
    /// `client`: of this process, never 0 and never reused (its incarnation).
    explicit request_keys(std::uint64_t client) : client_(client) {}

    /// A key in use: as long as it lives, the other side keeps the call's outcome (within its bounds).
    class key {
    public:
        key(key&& other) noexcept
            : of_(std::exchange(other.of_, nullptr)), number_(other.number_) {}
        key& operator=(key&&) = delete;
        ~key() {
            if (of_ != nullptr) of_->open_.erase(number_);
        }
        [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
        [[nodiscard]] const request_keys& keys() const noexcept { return *of_; }

    private:
        friend class request_keys;
        key(request_keys& of, std::uint64_t number) : of_(&of), number_(number) {
            of.open_.insert(number);
        }
        request_keys* of_;
        std::uint64_t number_;
    };
    /// The next key; this object must outlive it.
    [[nodiscard]] key next() { return key(*this, ++last_); }
    [[nodiscard]] std::uint64_t client() const noexcept { return client_; }
    /// All keys below are not in use any more.
    [[nodiscard]] std::uint64_t done_below() const noexcept {
        return open_.empty() ? last_ + 1 : *open_.begin();
    }

private:
    std::uint64_t client_, last_ = 0;
    std::set<std::uint64_t> open_;
};

/// What a caller may say about one call.
struct call_options {
    std::optional<duration> deadline;       ///< from now on; travels, and ends the handler too
    const request_keys::key* key = nullptr; ///< repeats with the same key run once
    std::uint64_t generation = 0; ///< refused by a service that knows a newer one; 0: none
};

/// Who asks.
struct caller {
    std::string peer;                   ///< for messages
    std::uint64_t incarnation = 0;      ///< of the peer of a link; 0: over a plain connection
    std::uint64_t generation = 0;       ///< as the caller says
    std::optional<time_point> deadline; ///< in this process's time
};

namespace detail {
struct request_head;
struct request_outcome;
struct request_entry;
class request_wire;
/// A decoded message, or an error that names it.
template <class T>
[[nodiscard]] T decode_message(byte_span body, std::string_view what) {
    auto read = wire::decode<T>(body);
    if (read) return std::move(*read);
    throw error(errc::malformed,
                fmt::format("the {} {} does not decode", what, type_name(typeid(T))))
        .with_cause(read.error().what());
}
} // namespace detail

class requests;

/// Handlers by message number, and what has run already; shared by the request layers of a process.
class request_service {
public:
    using raw_handler = unique_function<task<byte_buffer>(byte_buffer, caller)>;
    using waiting_caller = std::pair<std::weak_ptr<requests>, std::uint64_t>; ///< and its call

    /// Bounds of what is remembered of calls with a key.
    struct bounds {
        std::size_t keys_per_client = 65'536;
        std::size_t bytes_per_client = std::size_t{16} << 20; ///< of replies
        std::size_t clients = 1024;
    };

    request_service();
    explicit request_service(bounds b);
    request_service(const request_service&) = delete;
    request_service& operator=(const request_service&) = delete;
    /// close() first.
    ~request_service();

    /// Handles calls with the message M: `handler(M, caller)` is a task<Reply>.
    template <message M, message Reply, class F>
    void on(F handler) {
        add(M::number, type_name(typeid(M)),
            [run = std::make_shared<F>(std::move(handler))](byte_buffer body, caller who) {
                return typed<M, Reply, F>(run, std::move(body), std::move(who));
            });
    }
    /// Handles one-way messages: `handler(M, caller)` is a plain call.
    template <message M, class F>
    void on_tell(F handler) {
        add(M::number, type_name(typeid(M)),
            [run = std::make_shared<F>(std::move(handler))](byte_buffer body, caller who) {
                return told<M, F>(run, std::move(body), std::move(who));
            });
    }
    void add(std::uint16_t number, std::string_view name, raw_handler handler);

    /// Requests of an older generation are refused from now on (those that name none are not).
    void fence(std::uint64_t generation) noexcept {
        generation_ = std::max(generation_, generation);
    }
    [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

    /// Calls that came again and were answered without running again.
    [[nodiscard]] std::uint64_t repeats() const noexcept { return repeats_; }
    /// Keys that are remembered.
    [[nodiscard]] std::size_t remembered() const noexcept;

    /// Cancels what still runs for callers with keys and waits for it. Never throws.
    task<void> close();

private:
    friend class requests;
    struct client;
    using entry_ptr = std::shared_ptr<detail::request_entry>;

    template <class M, class Reply, class F>
    static task<byte_buffer> typed(std::shared_ptr<F> run, byte_buffer body, caller who) {
        auto work = (*run)(detail::decode_message<M>(body, "message"), std::move(who));
        body = byte_buffer();
        const Reply reply = co_await work;
        co_return wire::encode(reply);
    }
    template <class M, class F>
    static task<byte_buffer> told(std::shared_ptr<F> run, byte_buffer body, caller who) {
        (*run)(detail::decode_message<M>(body, "message"), std::move(who));
        co_return byte_buffer();
    }
    static task<void> run_once(request_service* self, std::uint64_t client, entry_ptr e,
                               byte_buffer body, caller who, raw_handler* handler);
    /// The call that runs, or nothing: it has been answered.
    entry_ptr start_or_join(const detail::request_head& head, byte_buffer body, caller who,
                            raw_handler* handler, waiting_caller from);
    client& client_of(std::uint64_t number);
    void trim(client& c) noexcept;

    struct named_handler {
        std::string name;
        raw_handler run;
    };
    bounds bounds_;
    std::map<std::uint16_t, named_handler> handlers_;
    std::map<std::uint64_t, std::unique_ptr<client>> clients_;
    std::deque<std::uint64_t> client_order_;
    std::uint64_t generation_ = 0, repeats_ = 0;
    scope tasks_;
};

/// One peer to call and to be called by. Dropping the last handle aborts the link below.
class requests {
public:
    using handle = std::shared_ptr<requests>;

    /// Takes over the handlers of `below`. Without a service every request is refused.
    static handle over(link::handle below, std::shared_ptr<request_service> service = {},
                       request_options options = {});
    static handle over(connection::handle below, std::shared_ptr<request_service> service = {},
                       request_options options = {});
    requests(const requests&) = delete;
    requests& operator=(const requests&) = delete;
    ~requests();

    /// Asks, and waits for the reply. Cancelling it cancels the handler over there.
    ///   errors  of the handler, as it threw them (an exception that is no skein::error: remote_exception);
    ///           not_supported (nobody handles it), malformed (one side cannot read the other), timeout,
    ///           aborted (an older generation), exhausted, too_large, the failure of the link, cancelled
    template <message Reply, message M>
    task<Reply> call(M what, call_options how = {}) {
        auto asking = call_raw(M::number, wire::encode(what), how);
        const byte_buffer body = co_await asking;
        co_return detail::decode_message<Reply>(body, "reply");
    }
    /// Sends without an answer; arrives once or not at all.
    ///   errors  closed, the failure of the link, too_large, exhausted
    template <message M>
    void tell(const M& what, std::uint64_t generation = 0) {
        tell_raw(M::number, wire::encode(what), generation);
    }
    task<byte_buffer> call_raw(std::uint16_t number, byte_buffer body, call_options how);
    void tell_raw(std::uint16_t number, byte_buffer body, std::uint64_t generation);

    /// Messages of other kinds on the same link, as connection::set_handler; without one they end the link.
    void set_other_handler(unique_function<void(const frame_view&)> handler);
    /// Called once when the link has ended: nullptr = orderly, else why. At once if it has.
    void set_closed_handler(unique_function<void(const error*)> handler);

    /// Orderly end: what runs for the peer is cancelled, the link is closed. Never throws.
    task<void> close();
    void abort(error why) noexcept;

    [[nodiscard]] bool is_open() const noexcept { return open_; }
    [[nodiscard]] const std::string& peer_name() const noexcept;
    /// Calls that wait for their reply, and handlers that run for the peer.
    [[nodiscard]] std::size_t waiting() const noexcept { return calls_.size(); }
    [[nodiscard]] std::size_t running() const noexcept { return running_.size(); }
    /// Bytes of large messages that have not been handed to the network.
    [[nodiscard]] std::size_t bulk_bytes() const noexcept { return bulk_bytes_; }

private:
    friend class request_service;
    using core = std::shared_ptr<requests>;
    struct pending;
    struct running_call {
        cancel_source stop;
        std::shared_ptr<detail::request_entry> once; ///< of a call with a key
    };
    struct transfer {
        std::uint16_t kind = 0; // 0: dropped
        std::uint64_t id = 0;
        byte_buffer body;
        std::size_t at = 0;
    };
    struct assembly {
        std::uint16_t kind = 0;
        std::uint64_t id = 0, total = 0;
        byte_buffer body;
    };

    requests(std::unique_ptr<detail::request_wire> below, std::shared_ptr<request_service> service,
             request_options options);
    static handle start(std::unique_ptr<detail::request_wire> below,
                        std::shared_ptr<request_service> service, request_options options);

    void send(std::uint16_t kind, std::uint64_t id, byte_buffer body);
    void drop_transfer(std::uint64_t id) noexcept;
    static task<void> bulk_lane(core self);
    void send_chunk();

    void on_frame(const frame_view& f);
    void on_chunk(const frame_view& f);
    void on_message(std::uint16_t kind, std::uint64_t id, byte_buffer body);
    void on_request(std::uint64_t id, byte_buffer body);
    void on_answer(std::uint64_t id, bool good, byte_buffer body);
    void refuse(std::uint64_t id, bool one_way, const error& why);
    void tell_unheard(const char* what, const error& why);
    static task<void> run(core self, std::uint64_t id, byte_buffer body, caller who, bool one_way,
                          request_service::raw_handler* handler, cancel_token stop);
    void answer(std::uint64_t id, const detail::request_outcome& outcome) noexcept;

    void on_end(const error* why) noexcept;
    void spawn(task<void> work);
    static task<void> part(core self, task<void> work);
    void release() noexcept;

    loop& loop_;
    std::unique_ptr<detail::request_wire> below_;
    std::shared_ptr<request_service> service_;
    request_options options_;
    bool open_ = true, ended_ = false;
    std::uint64_t unheard_ = 0; ///< one-way messages that came to nothing
    std::optional<error> failure_;
    unique_function<void(const frame_view&)> other_;
    unique_function<void(const error*)> closed_handler_;

    std::uint64_t last_call_ = 0;
    std::map<std::uint64_t, pending*> calls_;
    std::map<std::uint64_t, running_call> running_;

    std::deque<transfer> bulk_;
    std::size_t bulk_bytes_ = 0;
    bool bulk_runs_ = false;
    std::optional<assembly> arriving_;

    std::size_t parts_ = 0;
    core self_;
    scope tasks_;
};

} // namespace skein::net


// ======== skein/net/detail/request_service.ipp
// Handlers, and the memory of calls that must not run twice.


// ======== skein/net/detail/request_entry.hpp
// A call that runs once, however often it is asked for.


#include <cstdint>
#include <vector>

namespace skein::net::detail {

/// How a handler has ended.
struct request_outcome {
    bool good = false;
    byte_buffer bytes; ///< the encoded reply or error
};

/// A call with a key: it runs, or has run.
struct request_entry {
    std::uint64_t key = 0;
    cancel_source stop;
    std::vector<request_service::waiting_caller> waiting;
    bool done = false, kept = true; ///< kept: the outcome is
    request_outcome outcome;

    /// A caller does not want it any more; the last one ends it.
    void leave(const requests* who, std::uint64_t call) noexcept;
};

/// Runs a handler; its outcome as bytes. Never throws but bad_alloc.
task<request_outcome> outcome_of(request_service::raw_handler* handler, byte_buffer body,
                                 caller who, cancel_token stop);

} // namespace skein::net::detail

// ======== skein/net/detail/request_head.hpp
// The frames of the request layer and what is below it.
//
//   request   id = call   head, then the message       reply     id = call   the message
//   failure   id = call   an encoded skein::error      cancel    id = call
//   chunk     flags: first, last, dropped              first: kind(2) id(8) total(8), then bytes


#include <cstddef>
#include <cstdint>
#include <string>

namespace skein::net::detail {

inline constexpr std::uint16_t request_kind = 0xfd01, reply_kind = 0xfd02, failure_kind = 0xfd03,
                               cancel_kind = 0xfd04, chunk_kind = 0xfd05;
inline constexpr std::uint16_t first_chunk = 1, last_chunk = 2, dropped_chunk = 4;
inline constexpr std::size_t chunk_head_bytes = 18;
inline constexpr std::size_t most_control_bytes = std::size_t{1} << 20;
inline constexpr std::size_t most_chunk_bytes = std::size_t{4} << 20;

/// What stands before the message in a request.
struct request_head {
    static constexpr std::size_t bytes = 44;
    std::uint16_t number = 0;
    std::uint16_t flags = 0;       ///< 1: no answer is wanted
    std::uint64_t deadline_us = 0; ///< from the sending on; 0: none
    std::uint64_t generation = 0;
    std::uint64_t client = 0, key = 0, done_below = 0; ///< key 0: none

    static constexpr std::uint16_t one_way = 1;

    void encode(std::byte* to) const noexcept {
        store_le(to, number);
        store_le(to + 2, flags);
        store_le(to + 4, deadline_us);
        store_le(to + 12, generation);
        store_le(to + 20, client);
        store_le(to + 28, key);
        store_le(to + 36, done_below);
    }
    static request_head decode(const std::byte* from) noexcept {
        request_head h;
        h.number = load_le<std::uint16_t>(from);
        h.flags = load_le<std::uint16_t>(from + 2);
        h.deadline_us = load_le<std::uint64_t>(from + 4);
        h.generation = load_le<std::uint64_t>(from + 12);
        h.client = load_le<std::uint64_t>(from + 20);
        h.key = load_le<std::uint64_t>(from + 28);
        h.done_below = load_le<std::uint64_t>(from + 36);
        return h;
    }
};

/// A link or a connection.
class request_wire {
public:
    request_wire() = default;
    request_wire(const request_wire&) = delete;
    request_wire& operator=(const request_wire&) = delete;
    virtual ~request_wire() = default;
    virtual void send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
                      byte_span body) = 0;
    virtual task<void> send_ready(std::size_t most_queued) = 0;
    virtual void set_handler(unique_function<void(const frame_view&)> handler) = 0;
    virtual void set_closed_handler(unique_function<void(const error*)> handler) = 0;
    virtual task<void> close() = 0;
    virtual void abort(error why) noexcept = 0;
    [[nodiscard]] virtual const std::string& peer_name() const noexcept = 0;
    [[nodiscard]] virtual std::uint64_t peer_incarnation() const noexcept = 0;
};

} // namespace skein::net::detail


// ======== skein/net/detail/request_service.ipp, continued
#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

/// The calls of one client: those with the lowest keys go first.
struct request_service::client {
    std::map<std::uint64_t, entry_ptr> calls;
    std::uint64_t floor = 0; ///< keys below are forgotten
    std::size_t bytes = 0;   ///< of the outcomes that are kept

    void forget(std::map<std::uint64_t, entry_ptr>::iterator at) noexcept {
        if (at->second->kept) bytes -= at->second->outcome.bytes.size();
        floor = std::max(floor, at->first + 1);
        calls.erase(at);
    }
};

SKEIN_INLINE request_service::request_service() = default;
SKEIN_INLINE request_service::request_service(bounds b) : bounds_(b) {}
SKEIN_INLINE request_service::~request_service() = default;

SKEIN_INLINE void request_service::add(std::uint16_t number, std::string_view name,
                                       raw_handler handler) {
    const auto [at, fresh] =
        handlers_.try_emplace(number, named_handler{std::string(name), std::move(handler)});
    SKEIN_CHECK(fresh, "message {} ({}) has a handler: {}", number, name, at->second.name);
}

SKEIN_INLINE std::size_t request_service::remembered() const noexcept {
    std::size_t n = 0;
    for (const auto& [number, c] : clients_) n += c->calls.size();
    return n;
}

SKEIN_INLINE request_service::client& request_service::client_of(std::uint64_t number) {
    auto& slot = clients_[number];
    if (slot) return *slot;
    slot = std::make_unique<client>();
    client& made = *slot;
    client_order_.push_back(number);
    const auto is_idle = [&](std::uint64_t n) {
        const auto& calls = clients_.at(n)->calls;
        return n != number && std::all_of(calls.begin(), calls.end(),
                                          [](const auto& c) { return c.second->done; });
    };
    if (client_order_.size() > bounds_.clients) { // the oldest that runs nothing is forgotten
        const auto old = std::find_if(client_order_.begin(), client_order_.end(), is_idle);
        if (old != client_order_.end()) {
            clients_.erase(*old);
            client_order_.erase(old);
        }
    }
    return made;
}

/// Forgets outcomes until the bounds hold; what runs stays.
SKEIN_INLINE void request_service::trim(client& c) noexcept {
    auto at = c.calls.begin();
    while (at != c.calls.end() && (c.calls.size() > bounds_.keys_per_client)) {
        const auto next = std::next(at);
        if (at->second->done) c.forget(at);
        at = next;
    }
    for (at = c.calls.begin(); at != c.calls.end() && c.bytes > bounds_.bytes_per_client; ++at) {
        auto& e = *at->second;
        if (!e.done || !e.kept) continue;
        c.bytes -= e.outcome.bytes.size();
        e.outcome.bytes = byte_buffer();
        e.kept = false;
    }
}

SKEIN_INLINE request_service::entry_ptr request_service::start_or_join(
    const detail::request_head& head, byte_buffer body, caller who, raw_handler* handler,
    waiting_caller from) {
    const auto core = from.first.lock();
    const auto answer_error = [&](errc code, std::string text) {
        detail::request_outcome out;
        out.bytes = wire::encode(error(code, std::move(text)));
        core->answer(from.second, out);
        return entry_ptr();
    };
    client& c = client_of(head.client);
    while (!c.calls.empty() && c.calls.begin()->first < head.done_below &&
           c.calls.begin()->second->done) {
        c.forget(c.calls.begin());
    }
    if (const auto found = c.calls.find(head.key); found != c.calls.end()) {
        ++repeats_;
        const auto e = found->second;
        if (!e->done) {
            e->waiting.push_back(std::move(from));
            return e;
        }
        if (!e->kept) {
            return answer_error(
                errc::already_exists,
                fmt::format("call {} has run, its answer is not kept any more", head.key));
        }
        core->answer(from.second, e->outcome);
        return nullptr;
    }
    if (head.key < c.floor) {
        return answer_error(errc::exhausted,
                            fmt::format("call {} may have run: what is remembered begins at {}",
                                        head.key, c.floor));
    }
    auto e = std::make_shared<detail::request_entry>();
    e->key = head.key;
    e->waiting.push_back(std::move(from));
    c.calls.emplace(head.key, e);
    trim(c);
    tasks_.spawn(run_once(this, head.client, e, std::move(body), std::move(who), handler));
    return e;
}

SKEIN_INLINE task<void> request_service::run_once(request_service* self, std::uint64_t client,
                                                  entry_ptr e, byte_buffer body, caller who,
                                                  raw_handler* handler) {
    auto running = detail::outcome_of(handler, std::move(body), std::move(who), e->stop.token());
    e->outcome = co_await running;
    e->done = true;
    const auto waiting = std::exchange(e->waiting, {});
    for (const auto& [from, call] : waiting) {
        if (const auto there = from.lock()) there->answer(call, e->outcome);
    }
    const auto found = self->clients_.find(client);
    if (found == self->clients_.end()) co_return;
    auto& calls = found->second->calls;
    if (const auto at = calls.find(e->key); at != calls.end() && at->second == e) {
        found->second->bytes += e->outcome.bytes.size();
        self->trim(*found->second);
    }
}

SKEIN_INLINE task<void> request_service::close() {
    tasks_.cancel();
    try {
        auto joining = shield(tasks_.join());
        co_await joining;
    } catch (const std::exception&) { // outcomes hold the errors
    }
}

namespace detail {

SKEIN_INLINE void request_entry::leave(const requests* who, std::uint64_t call) noexcept {
    std::erase_if(waiting, [&](const request_service::waiting_caller& w) {
        return w.second == call && w.first.lock().get() == who;
    });
    if (waiting.empty()) stop.request();
}

/// Runs a handler; its outcome as bytes.
SKEIN_INLINE task<request_outcome> outcome_of(request_service::raw_handler* handler,
                                              byte_buffer body, caller who, cancel_token stop) {
    request_outcome out;
    try {
        const auto deadline = who.deadline;
        auto work = with_cancel(std::move(stop), (*handler)(std::move(body), std::move(who)));
        auto limited = deadline ? with_deadline(std::move(work), *deadline) : std::move(work);
        out.bytes = co_await limited;
        out.good = true;
    } catch (...) {
        out.bytes = wire::encode(to_error(std::current_exception(), errc::remote_exception));
    }
    co_return out;
}

} // namespace detail
} // namespace skein::net

// ======== skein/net/detail/requests.ipp
// Calls, their answers, and the two lanes of a link.


#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

namespace detail {

template <class Below>
class request_wire_over final : public request_wire {
public:
    explicit request_wire_over(std::shared_ptr<Below> below) : below_(std::move(below)) {}
    void send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
              byte_span body) override {
        below_->send(kind, flags, id, head, body);
    }
    task<void> send_ready(std::size_t most_queued) override {
        return below_->send_ready(most_queued);
    }
    void set_handler(unique_function<void(const frame_view&)> handler) override {
        below_->set_handler(std::move(handler));
    }
    void set_closed_handler(unique_function<void(const error*)> handler) override {
        below_->set_closed_handler(std::move(handler));
    }
    task<void> close() override { return below_->close(); }
    void abort(error why) noexcept override { below_->abort(std::move(why)); }
    [[nodiscard]] const std::string& peer_name() const noexcept override {
        return below_->peer_name();
    }
    [[nodiscard]] std::uint64_t peer_incarnation() const noexcept override {
        if constexpr (std::is_same_v<Below, link>) return below_->peer_incarnation();
        return 0;
    }

private:
    std::shared_ptr<Below> below_;
};

} // namespace detail

/// One call that waits; lives in the frame of call_raw.
struct requests::pending {
    event done;
    std::optional<byte_buffer> reply;
    std::optional<error> failure;

    static task<void> wait(pending* self) {
        auto answered = self->done.wait();
        co_await answered;
    }
};

SKEIN_INLINE requests::requests(std::unique_ptr<detail::request_wire> below,
                                std::shared_ptr<request_service> service, request_options options)
    : loop_(loop::current()), below_(std::move(below)), service_(std::move(service)),
      options_(options) {
    options_.control_bytes = std::min(options_.control_bytes, detail::most_control_bytes);
    options_.chunk_bytes =
        std::clamp<std::size_t>(options_.chunk_bytes, 1024, detail::most_chunk_bytes);
}
SKEIN_INLINE requests::~requests() = default;

SKEIN_INLINE requests::handle requests::over(link::handle below,
                                             std::shared_ptr<request_service> service,
                                             request_options options) {
    return start(std::make_unique<detail::request_wire_over<link>>(std::move(below)),
                 std::move(service), options);
}
SKEIN_INLINE requests::handle requests::over(connection::handle below,
                                             std::shared_ptr<request_service> service,
                                             request_options options) {
    return start(std::make_unique<detail::request_wire_over<connection>>(std::move(below)),
                 std::move(service), options);
}

SKEIN_INLINE requests::handle requests::start(std::unique_ptr<detail::request_wire> below,
                                              std::shared_ptr<request_service> service,
                                              request_options options) {
    const core made(new requests(std::move(below), std::move(service), options));
    made->self_ = made;
    requests* const raw = made.get();
    raw->below_->set_closed_handler([made](const error* why) { made->on_end(why); });
    if (!raw->ended_) raw->below_->set_handler([made](const frame_view& f) { made->on_frame(f); });
    return handle(raw, [made](requests* r) {
        r->closed_handler_ = nullptr;
        r->other_ = nullptr;
        r->abort(error(errc::closed, "the request layer was dropped without close()"));
    });
}

// --- calling ----------------------------------------------------------------------------------

SKEIN_INLINE task<byte_buffer> requests::call_raw(std::uint16_t number, byte_buffer body,
                                                  call_options how) {
    const core keep = self_;
    if (!open_) {
        if (failure_) throw *failure_;
        throw error(errc::closed, "the link to " + peer_name() + " is closed");
    }
    detail::request_head head;
    head.number = number;
    head.generation = how.generation;
    if (how.deadline) {
        head.deadline_us = static_cast<std::uint64_t>(std::max<std::int64_t>(
            1, std::chrono::duration_cast<std::chrono::microseconds>(*how.deadline).count()));
    }
    if (how.key != nullptr) {
        head.client = how.key->keys().client();
        head.key = how.key->number();
        head.done_below = how.key->keys().done_below();
    }
    byte_buffer whole(detail::request_head::bytes);
    head.encode(whole.data());
    append(whole, body);
    body = byte_buffer();

    pending mine;
    const std::uint64_t id = ++last_call_;
    struct place {
        requests& r;
        std::uint64_t id;
        ~place() { r.calls_.erase(id); }
    } const place{*this, id};
    calls_.emplace(id, &mine);
    send(detail::request_kind, id, std::move(whole));
    std::optional<error> gave_up;
    try {
        auto answered = pending::wait(&mine);
        auto limited =
            how.deadline ? with_timeout(std::move(answered), *how.deadline) : std::move(answered);
        co_await limited;
    } catch (const error& e) {
        gave_up = e;
    }
    if (gave_up && !mine.done.is_set()) {
        drop_transfer(id);
        if (open_) send(detail::cancel_kind, id, {});
        throw *gave_up;
    }
    if (mine.failure) throw *mine.failure;
    co_return std::move(*mine.reply);
}

SKEIN_INLINE void requests::tell_raw(std::uint16_t number, byte_buffer body,
                                     std::uint64_t generation) {
    if (!open_) {
        if (failure_) throw *failure_;
        throw error(errc::closed, "the link to " + peer_name() + " is closed");
    }
    detail::request_head head;
    head.number = number;
    head.flags = detail::request_head::one_way;
    head.generation = generation;
    byte_buffer whole(detail::request_head::bytes);
    head.encode(whole.data());
    append(whole, body);
    send(detail::request_kind, ++last_call_, std::move(whole));
}

// --- the two lanes ----------------------------------------------------------------------------

/// Small messages go at once; large ones wait in a lane of their own.
SKEIN_INLINE void requests::send(std::uint16_t kind, std::uint64_t id, byte_buffer body) {
    if (body.size() > options_.most_message) {
        throw error(errc::too_large,
                    fmt::format("message of {} bytes to {} is above the limit of {}", body.size(),
                                peer_name(), options_.most_message));
    }
    if (body.size() <= options_.control_bytes) {
        below_->send(kind, 0, id, body, {});
        return;
    }
    bulk_bytes_ += body.size();
    bulk_.push_back({kind, id, std::move(body), 0});
    if (!std::exchange(bulk_runs_, true)) spawn(bulk_lane(self_));
}

/// A large message whose call was given up: what has not left, does not.
SKEIN_INLINE void requests::drop_transfer(std::uint64_t id) noexcept {
    const auto found = std::find_if(bulk_.begin(), bulk_.end(), [&](const transfer& t) {
        return t.id == id && t.kind == detail::request_kind;
    });
    if (found == bulk_.end()) return;
    bulk_bytes_ -= found->body.size() - found->at;
    if (found->at == 0) {
        bulk_.erase(found);
        return;
    }
    found->body.resize(found->at); // the lane says that it is dropped
    found->kind = 0;
}

/// One chunk at a time, and only when the one before has gone to the kernel: so a small message never
/// waits for more than that.
SKEIN_INLINE task<void> requests::bulk_lane(core self) {
    requests& r = *self;
    try {
        while (r.open_ && !r.bulk_.empty()) {
            auto room = r.below_->send_ready(r.options_.chunk_bytes / 2);
            co_await room;
            if (r.open_ && !r.bulk_.empty()) r.send_chunk();
        }
    } catch (const error& e) { // the end of the link is told elsewhere
        if (r.open_ && e.code() != errc::cancelled && e.code() != errc::closed) throw;
    }
    r.bulk_runs_ = false;
}

SKEIN_INLINE void requests::send_chunk() {
    transfer& t = bulk_.front();
    if (t.kind == 0) {
        below_->send(detail::chunk_kind, detail::dropped_chunk, t.id, {}, {});
        bulk_.pop_front();
        return;
    }
    std::byte head[detail::chunk_head_bytes];
    std::uint16_t flags = 0;
    if (t.at == 0) {
        flags |= detail::first_chunk;
        store_le(head, t.kind);
        store_le(head + 2, t.id);
        store_le(head + 10, static_cast<std::uint64_t>(t.body.size()));
    }
    const std::size_t n = std::min(options_.chunk_bytes, t.body.size() - t.at);
    const auto piece = byte_span(t.body).subspan(t.at, n);
    t.at += n;
    bulk_bytes_ -= n;
    if (t.at == t.body.size()) flags |= detail::last_chunk;
    const bool first = (flags & detail::first_chunk) != 0;
    below_->send(detail::chunk_kind, flags, t.id, first ? byte_span(head) : byte_span(), piece);
    if ((flags & detail::last_chunk) != 0) bulk_.pop_front();
}

SKEIN_INLINE void requests::on_chunk(const frame_view& f) {
    byte_span body = f.body;
    if ((f.flags & detail::first_chunk) != 0) {
        if (arriving_ || body.size() < detail::chunk_head_bytes) {
            throw error(errc::malformed, "a large message begins inside another one");
        }
        assembly a;
        a.kind = load_le<std::uint16_t>(body.data());
        a.id = load_le<std::uint64_t>(body.data() + 2);
        a.total = load_le<std::uint64_t>(body.data() + 10);
        if (a.total > options_.most_message) {
            throw error(errc::too_large,
                        fmt::format("message of {} bytes from {} is above the limit of {}", a.total,
                                    peer_name(), options_.most_message));
        }
        arriving_ = std::move(a);
        body = body.subspan(detail::chunk_head_bytes);
    }
    if (!arriving_) throw error(errc::malformed, "a chunk of no message");
    if ((f.flags & detail::dropped_chunk) != 0) {
        arriving_.reset();
        return;
    }
    if (body.size() > arriving_->total - arriving_->body.size()) {
        throw error(errc::malformed, "a large message is longer than it said");
    }
    append(arriving_->body, body); // memory follows what has come
    if ((f.flags & detail::last_chunk) == 0) return;
    if (arriving_->body.size() != arriving_->total) {
        throw error(errc::malformed, "a large message is shorter than it said");
    }
    assembly whole = std::move(*arriving_);
    arriving_.reset();
    on_message(whole.kind, whole.id, std::move(whole.body));
}

// --- being called -----------------------------------------------------------------------------

SKEIN_INLINE void requests::on_frame(const frame_view& f) {
    const core keep = self_;
    switch (f.kind) {
    case detail::chunk_kind:
        if (f.body.size() > detail::most_chunk_bytes + detail::chunk_head_bytes) break;
        on_chunk(f);
        return;
    case detail::request_kind:
    case detail::reply_kind:
    case detail::failure_kind:
    case detail::cancel_kind:
        if (f.body.size() > detail::most_control_bytes) break;
        on_message(f.kind, f.id, f.take_body());
        return;
    default:
        if (other_) {
            other_(f);
            return;
        }
        throw error(errc::malformed, fmt::format("a frame of kind {:#x} between requests", f.kind))
            .with_hint("the peer does not speak in requests");
    }
    throw error(errc::too_large, fmt::format("a frame of kind {:#x} with {} bytes from {}", f.kind,
                                             f.body.size(), peer_name()))
        .with_hint("large messages come in chunks");
}

SKEIN_INLINE void requests::on_message(std::uint16_t kind, std::uint64_t id, byte_buffer body) {
    switch (kind) {
    case detail::request_kind: on_request(id, std::move(body)); return;
    case detail::reply_kind: on_answer(id, true, std::move(body)); return;
    case detail::failure_kind: on_answer(id, false, std::move(body)); return;
    case detail::cancel_kind: {
        const auto found = running_.find(id);
        if (found == running_.end()) return;
        found->second.stop.request();
        if (const auto once = found->second.once) {
            running_.erase(found); // nobody answers it any more
            once->leave(this, id);
        }
        return;
    }
    default: throw error(errc::malformed, fmt::format("a large message of kind {:#x}", kind));
    }
}

SKEIN_INLINE void requests::on_answer(std::uint64_t id, bool good, byte_buffer body) {
    const auto found = calls_.find(id);
    if (found == calls_.end()) { // it was given up, or never made
        if (id > last_call_)
            throw error(errc::malformed, "an answer to a call that was never made");
        return;
    }
    pending& p = *found->second;
    if (p.done.is_set()) throw error(errc::malformed, "a second answer to one call");
    if (good) {
        p.reply = std::move(body);
    } else {
        error told(errc::unknown, "");
        const auto read = wire::decode(body, told);
        p.failure = read ? told
                         : error(errc::malformed,
                                 "the error of a call to " + peer_name() + " does not decode")
                               .with_cause(read.error().what());
    }
    p.done.set();
}

SKEIN_INLINE void requests::refuse(std::uint64_t id, bool one_way, const error& why) {
    if (one_way) {
        tell_unheard("message refused", why);
        return;
    }
    send(detail::failure_kind, id, wire::encode(why));
}

SKEIN_INLINE void requests::on_request(std::uint64_t id, byte_buffer body) {
    if (body.size() < detail::request_head::bytes) {
        throw error(errc::malformed, fmt::format("a request of {} bytes", body.size()));
    }
    const auto head = detail::request_head::decode(body.data());
    const bool one_way = (head.flags & detail::request_head::one_way) != 0;
    if (running_.contains(id)) throw error(errc::malformed, "two requests with one number");
    const auto found =
        service_ ? service_->handlers_.find(head.number) : decltype(service_->handlers_.end()){};
    if (!service_ || found == service_->handlers_.end()) {
        refuse(
            id, one_way,
            error(errc::not_supported, fmt::format("message {} is not handled here", head.number))
                .with_hint("the peer is of another version, or in another role"));
        return;
    }
    if (head.generation != 0 && head.generation < service_->generation_) {
        refuse(id, one_way,
               error(errc::aborted,
                     fmt::format("{} of generation {} comes too late, {} is current",
                                 found->second.name, head.generation, service_->generation_)));
        return;
    }
    if (running_.size() >= options_.most_running) {
        refuse(id, one_way,
               error(errc::exhausted,
                     fmt::format("{} requests of {} run already", running_.size(), peer_name())));
        return;
    }
    caller who;
    who.peer = peer_name();
    who.incarnation = below_->peer_incarnation();
    who.generation = head.generation;
    if (head.deadline_us != 0) {
        const auto most = std::uint64_t{1} << 50;
        who.deadline = deadline_after(
            loop_.exact_now(),
            std::chrono::microseconds(static_cast<std::int64_t>(std::min(head.deadline_us, most))));
    }
    body.erase(body.begin(), body.begin() + detail::request_head::bytes);
    const auto stop = running_[id].stop.token();
    if (head.key != 0 && !one_way) {
        auto once = service_->start_or_join(head, std::move(body), std::move(who),
                                            &found->second.run, {self_, id});
        if (once) running_[id].once = std::move(once);
        return;
    }
    spawn(run(self_, id, std::move(body), std::move(who), one_way, &found->second.run, stop));
}

SKEIN_INLINE task<void> requests::run(core self, std::uint64_t id, byte_buffer body, caller who,
                                      bool one_way, request_service::raw_handler* handler,
                                      cancel_token stop) {
    const auto service = self->service_; // the handler is its
    auto running = detail::outcome_of(handler, std::move(body), std::move(who), std::move(stop));
    const auto outcome = co_await running;
    if (!one_way) {
        self->answer(id, outcome);
        co_return;
    }
    self->running_.erase(id);
    if (outcome.good) co_return;
    error why(errc::unknown, "");
    (void)wire::decode(outcome.bytes, why).has_value();
    self->tell_unheard("message failed", why);
}

/// Nobody waits for an answer to a one-way message, so the log is told: of the first ones, then of ever fewer, for
/// how many there are is up to the peer.
SKEIN_INLINE void requests::tell_unheard(const char* what, const error& why) {
    constexpr std::uint64_t all_of_the_first = 8;
    if (++unheard_ > all_of_the_first && !std::has_single_bit(unheard_)) return;
    logging::warn("net", what, {{"peer", peer_name()}, {"why", why.what()}, {"so_far", unheard_}});
}

SKEIN_INLINE void requests::answer(std::uint64_t id,
                                   const detail::request_outcome& outcome) noexcept {
    running_.erase(id);
    if (!open_) return;
    try {
        send(outcome.good ? detail::reply_kind : detail::failure_kind, id, outcome.bytes);
    } catch (const error& e) {
        if (e.code() != errc::too_large) { // what cannot be answered must not be waited for
            abort(e);
            return;
        }
        try {
            send(detail::failure_kind, id, wire::encode(e));
        } catch (const std::exception& again) {
            abort(error(errc::internal, again.what()));
        }
    }
}

// --- the end ----------------------------------------------------------------------------------

SKEIN_INLINE const std::string& requests::peer_name() const noexcept { return below_->peer_name(); }

SKEIN_INLINE void requests::on_end(const error* why) noexcept {
    if (std::exchange(ended_, true)) return;
    const core keep = self_;
    open_ = false;
    if (why != nullptr) failure_ = *why;
    const error told =
        failure_ ? *failure_ : error(errc::closed, "the link to " + peer_name() + " was closed");
    for (auto& [id, p] : calls_) {
        if (p->done.is_set()) continue;
        p->failure = told;
        p->done.set();
    }
    // Calls with a key go on when the link broke: their caller may ask again on another one.
    running_.clear();
    bulk_.clear();
    bulk_bytes_ = 0;
    arriving_.reset();
    tasks_.cancel();
    if (auto handler = std::move(closed_handler_)) {
        closed_handler_ = nullptr;
        try {
            handler(failure_ ? &*failure_ : nullptr);
        } catch (const std::exception& e) {
            logging::error("net", "closed handler failed", {{"what", e.what()}});
        }
    }
    if (parts_ == 0) release();
}

SKEIN_INLINE void requests::set_other_handler(unique_function<void(const frame_view&)> handler) {
    other_ = std::move(handler);
}

SKEIN_INLINE void requests::set_closed_handler(unique_function<void(const error*)> handler) {
    if (ended_) {
        if (handler) handler(failure_ ? &*failure_ : nullptr);
        return;
    }
    closed_handler_ = std::move(handler);
}

SKEIN_INLINE void requests::abort(error why) noexcept {
    const core keep = self_;
    open_ = false;
    below_->abort(std::move(why));
}

SKEIN_INLINE task<void> requests::close() {
    const core keep = self_;
    open_ = false;
    tasks_.cancel();
    auto closing = below_->close();
    co_await closing;
    try {
        auto joining = shield(tasks_.join());
        co_await joining;
    } catch (const std::exception&) { // the tasks report elsewhere
    }
}

SKEIN_INLINE void requests::spawn(task<void> work) {
    if (ended_) return;
    ++parts_;
    tasks_.spawn(part(self_, std::move(work)));
}

SKEIN_INLINE task<void> requests::part(core self, task<void> work) {
    try {
        co_await work;
    } catch (...) {
        const error why = to_error(std::current_exception());
        if (why.code() != errc::cancelled) self->abort(why);
    }
    work = {};
    if (--self->parts_ == 0 && self->ended_) self->release();
}

SKEIN_INLINE void requests::release() noexcept {
    loop_.post([last = std::move(self_)] {
        if (last) last->other_ = nullptr;
    });
}

} // namespace skein::net

// ======== skein/rt.hpp
// Every public header of the layer rt.
// Written by scripts/check_mirror.py --write.


// ======== skein/rt/actor.hpp
// Actors: an object that lives on one worker and is called through a handle.
//
//     struct counter { int n = 0; int add(int k) { return n += k; } };
//     auto c = co_await skein::actor<counter>(10);
//     auto r = c.call<&counter::add>(5);
//     int n = co_await r;                                    // 15
//
// Calls of one caller run in the order in which they were made, also when an argument is a ref that
// is still pending. Plain methods run one after the other; coroutine methods start in order and
// interleave only where they suspend. A call runs at most once. When the worker dies, the actor is
// gone and its calls fail with worker_lost. The actor ends with the last handle in the process that
// made it; a handle given to a remote call as an argument keeps it for that call.


// ======== skein/rt/remote.hpp
// remote<&f>(args...): calls a function on some worker and gives a ref to its result.
//
//     row load(int shard);                               // plain function or coroutine
//     auto r = skein::remote<&load>(7);                  // submitted now
//     auto s = skein::remote<&score>.with({.cpus = 2})(r, 2.f);
//     float x = co_await s;
//
// Arguments are converted to the parameter types here and encoded once. A ref<T> stands for its T:
// the call is sent when it is there. A task may run again after its worker died (.retries); what it
// does twice is the program's concern. Methods of actors: remote<&T::m>(handle, args...).


// ======== skein/rt/detail/remote.hpp
// The templates behind rt/remote.hpp: what a function's record does with a call that arrives, and how a
// call's arguments leave. All that does not depend on the function is in runtime.


// ======== skein/rt/ref.hpp
// ref<T>: the value of a remote call, now or later.
//
// Copy it, pass it on as an argument of another call (it is resolved on the way), await it any number
// of times. The call runs whether or not anybody looks: dropping a ref does not cancel it. If the call
// fails after its last ref was dropped, the error is logged as a warning.
//
//     auto row = skein::remote<&load>(7);          // runs now
//     auto s = skein::remote<&score>(row, 2.f);    // runs as soon as row is there
//     float x = co_await s;


// ======== skein/rt/detail/call.hpp
// One remote call as its submitter sees it, from remote<&f>(...) to its one outcome.
//
//     preparing  an argument is a ref that is not there yet, or an earlier call of the same actor waits
//     queued     complete, waits for a worker                              (did not run)
//     sent       handed to a worker                                        (may have run)
//     started    the worker said that it is in the middle of it            (had started)
//     done       value or failure is there; final
//
// A call is counted (not atomically: everything belongs to one loop). The runtime's slot table holds one
// count from submit to done, refs hold the others.


// ======== skein/rt/detail/call_context.hpp
// The context of a task in the runtime: which runtime it calls through, and which call it is part of.


#include <cstdint>
#include <utility>

namespace skein::rt {

class runtime;
struct function_record;

namespace detail {

class call_base;

/// Says where a runtime is, and that it has ended, to those who may outlive it.
class runtime_anchor {
public:
    explicit runtime_anchor(runtime& of) noexcept : self(&of) {}
    void add_use() noexcept { ++uses_; }
    void drop_use() noexcept {
        if (--uses_ == 0) delete this;
    }
    runtime* self; ///< nullptr: it has ended

private:
    std::uint32_t uses_ = 0;
};

/// How the call that asks is related to others: goes along with it.
struct lineage {
    call_id id;
    call_id trace;  ///< the first call of the tree; its own id if it has no parent
    call_id parent; ///< none: made by a task that is no call
    time_point until = time_point::max(); ///< its deadline, in the time of this loop; max: none
};

/// A call that runs here, or (id: none) the tasks of a driver that are no call.
class call_context final : public task_context {
public:
    explicit call_context(counted_ptr<runtime_anchor> where) noexcept
        : task_context(&tag_), where_(std::move(where)) {}

    /// Of the task that runs now; nullptr if it belongs to no runtime.
    [[nodiscard]] static call_context* current() noexcept {
        auto* c = task_context::current();
        return c != nullptr && c->kind() == &tag_ ? static_cast<call_context*>(c) : nullptr;
    }
    /// The runtime it calls through; nullptr when that has ended.
    [[nodiscard]] runtime* where() const noexcept { return where_->self; }
    [[nodiscard]] bool is_call() const noexcept { return static_cast<bool>(who.id); }

    void add_child(call_base& call) noexcept { children_.push_back(call); }
    /// Cancels what it has called and what has no outcome yet.
    void cancel_children();

    lineage who;
    const function_record* fn = nullptr;
    actor_id actor; ///< of a method or constructor

private:
    static constexpr char tag_ = 0;
    counted_ptr<runtime_anchor> where_;
    intrusive_list<call_base, call_base> children_;
};

} // namespace detail
} // namespace skein::rt

// ======== skein/rt/options.hpp
// What a caller may say about one call.
//
//     auto r = skein::remote<&score>.with({.cpus = 2, .retries = 5, .deadline = 200ms})(row);
//
// Trivially destructible on purpose: braces in an expression with co_await are safe with it on g++ 12.


#include <string_view>
#include <type_traits>

namespace skein {

/// The .deadline of a call that may take as long as it likes.
inline constexpr duration no_deadline = duration::max();

/// Options of one call.
struct call_options {
    int cpus = 1;     ///< cores a task occupies on its worker; 0: waits only, runs at once
    int retries = -1; ///< times a task runs again after its worker died; -1: 3. Actors: always 0
    /// From now; then the ref fails with timeout and the call is cancelled. Zero or less, as what is left
    /// of a budget may be: at once, and the call is not sent.
    duration deadline = no_deadline;
    std::string_view name{}; ///< shown in errors instead of the function's name; copied at submit
};
static_assert(std::is_trivially_destructible_v<call_options>);

/// Times a task is run again when its worker dies, unless .retries says otherwise.
inline constexpr int default_task_retries = 3;

} // namespace skein

// ======== skein/rt/registry.hpp
// Which functions of this program can be called from another process, and under which number.
//
// A function names itself: remote<&f> puts its record into the registry before main runs, in the
// driver as in the worker, because both are the same binary. The key is the 64-bit hash of its mangled
// name, the signature hash covers the types of arguments and result. At first use the records are
// sorted by key and numbered 0, 1, 2...; calls carry that dense index. The hash over the whole table
// is compared when two processes meet, so equal indices mean equal functions.


// ======== skein/rt/detail/signature.hpp
// What a function pointer says about a remote function: its arguments, its result, its class, and
// whether they can travel. Every rule a user can break has its one readable line here.


// ======== skein/wire/schema.hpp
// The shape of a type as text and as a 64-bit hash, equal on every compiler.
//
// Two builds compare hashes before they decode anything from each other. Field names and order
// count, the names of the types do not: "{id:u64,names:vec<str>}". A type inside itself is "^n",
// n aggregates up.


namespace skein::wire {

namespace detail {

/// FNV-1a, 64 bits, then mixed.
class hash_sink {
public:
    constexpr void operator()(std::string_view text) noexcept { hash_.text(text); }
    [[nodiscard]] constexpr std::uint64_t value() const noexcept {
        std::uint64_t x = hash_.value();
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        return x ^ (x >> 31);
    }

private:
    fnv1a hash_;
};

struct text_sink {
    std::string text;
    void operator()(std::string_view piece) { text += piece; }
};

template <class Sink>
constexpr void describe_number(Sink& sink, std::uint64_t n) {
    char digits[20] = {};
    std::size_t at = sizeof digits;
    do digits[--at] = static_cast<char>('0' + n % 10);
    while ((n /= 10) != 0);
    sink(std::string_view(digits + at, sizeof digits - at));
}

template <class T>
consteval std::string_view scalar_name() {
    if constexpr (std::is_same_v<T, bool>)
        return "bool";
    else if constexpr (std::is_same_v<T, char>)
        return "char";
    else if constexpr (std::is_same_v<T, std::byte>)
        return "byte";
    else if constexpr (std::is_floating_point_v<T>)
        return sizeof(T) == 4 ? "f32" : "f64";
    else {
        constexpr std::string_view names[2][4] = {{"u8", "u16", "u32", "u64"},
                                                  {"i8", "i16", "i32", "i64"}};
        constexpr std::size_t width = sizeof(T) == 1   ? 0
                                      : sizeof(T) == 2 ? 1
                                      : sizeof(T) == 4 ? 2
                                                       : 3;
        return names[std::is_signed_v<T> ? 1 : 0][width];
    }
}

template <class T, class... Above>
consteval std::size_t levels_up() {
    constexpr bool same[] = {std::is_same_v<T, Above>...};
    std::size_t n = 0;
    while (!same[n]) ++n;
    return n;
}

template <class T, class... Above, class Sink>
constexpr void describe(Sink& sink);

template <class T, class... Above, class Sink>
constexpr void describe_items(Sink& sink, std::string_view name) {
    sink(name);
    [&]<template <class...> class Template, class... Items>(const Template<Items...>*) {
        bool first = true;
        ((first ? void(first = false) : sink(","),
          describe<std::remove_cvref_t<Items>, Above...>(sink)),
         ...);
    }(static_cast<const T*>(nullptr));
    sink(">");
}

template <class T, class... Above, class Sink>
constexpr void describe_fields(Sink& sink) {
    sink("{");
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        ((sink(I == 0 ? "" : ","), sink(field_name<T, I>()), sink(":"),
          describe<field_type<T, I>, T, Above...>(sink)),
         ...);
    }(std::make_index_sequence<field_count<T>>{});
    sink("}");
}

/// What has parts: containers, and aggregates at last.
template <class T, class... Above, class Sink>
constexpr void describe_parts(Sink& sink) {
    if constexpr (is_span<T> || is_a<T, std::vector>) {
        sink("vec<");
        describe<std::remove_cv_t<typename T::value_type>, Above...>(sink);
        sink(">");
    } else if constexpr (is_array<T>) {
        sink("arr<");
        describe<typename T::value_type, Above...>(sink);
        sink(",");
        describe_number(sink, std::tuple_size_v<T>);
        sink(">");
    } else if constexpr (is_map<T>) {
        sink("map<");
        describe<typename T::key_type, Above...>(sink);
        sink(",");
        describe<typename T::mapped_type, Above...>(sink);
        sink(">");
    } else if constexpr (is_set<T> || is_a<T, std::optional> || is_a<T, result>) {
        sink(is_set<T> ? "set<" : is_a<T, std::optional> ? "opt<" : "res<");
        describe<typename T::value_type, Above...>(sink);
        sink(">");
    } else if constexpr (is_a<T, std::variant>) {
        describe_items<T, Above...>(sink, "var<");
    } else if constexpr (is_tuple<T>) {
        describe_items<T, Above...>(sink, "tup<");
    } else {
        describe_fields<T, Above...>(sink);
    }
}

template <class T, class... Above, class Sink>
constexpr void describe(Sink& sink) {
    if constexpr (is_one_of<T, Above...>) {
        sink("^");
        describe_number(sink, levels_up<T, Above...>());
    } else if constexpr (custom<T>) {
        if constexpr (requires { std::string_view(codec<T>::schema); })
            sink(codec<T>::schema);
        else
            sink("custom");
    } else if constexpr (std::is_void_v<T>) {
        sink("void");
    } else if constexpr (std::is_same_v<T, skein::error>) {
        sink("error");
    } else if constexpr (std::is_same_v<T, std::monostate>) {
        sink("unit");
    } else if constexpr (std::is_enum_v<T> && !std::is_same_v<T, std::byte>) {
        sink("enum<");
        sink(scalar_name<std::underlying_type_t<T>>());
        sink(">");
    } else if constexpr (is_scalar<T>) {
        sink(scalar_name<T>());
    } else if constexpr (is_id<T>) {
        sink("id<");
        sink(scalar_name<typename T::rep>());
        sink(">");
    } else if constexpr (is_duration<T>) {
        sink("dur<");
        sink(scalar_name<typename T::rep>());
        sink(",");
        describe_number(sink, T::period::num);
        sink("/");
        describe_number(sink, T::period::den);
        sink(">");
    } else if constexpr (is_text<T>) {
        sink("str");
    } else {
        describe_parts<T, Above...>(sink);
    }
}

} // namespace detail

/// The shape of T (void is allowed: the result of a function).
template <class T>
    requires(encodable<T> || std::is_void_v<T>)
[[nodiscard]] std::string schema_text() {
    detail::text_sink sink;
    detail::describe<std::remove_cvref_t<T>>(sink);
    return std::move(sink.text);
}

/// A hash of schema_text<T>(), at compile time.
template <class T>
    requires(encodable<T> || std::is_void_v<T>)
[[nodiscard]] consteval std::uint64_t schema_hash() {
    detail::hash_sink sink;
    detail::describe<std::remove_cvref_t<T>>(sink);
    return sink.value();
}

} // namespace skein::wire


// ======== skein/rt/detail/signature.hpp, continued
#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace skein {

template <class T>
class ref;

namespace rt::detail {

template <class R>
struct unwrap_task {
    using type = R;
    static constexpr bool is_coroutine = false;
};
template <class T>
struct unwrap_task<task<T>> {
    using type = T;
    static constexpr bool is_coroutine = true;
};

template <class>
struct unwrap_ref {
    static constexpr bool is_ref = false;
};
template <class T>
struct unwrap_ref<ref<T>> {
    using type = T;
    static constexpr bool is_ref = true;
};

template <class R, class C, class... P>
struct signature_of {
    using result = std::remove_cvref_t<typename unwrap_task<R>::type>;
    using class_type = C;
    using parameters = std::tuple<P...>;                     ///< as declared
    using arguments = std::tuple<std::remove_cvref_t<P>...>; ///< as they travel
    static constexpr bool is_coroutine = unwrap_task<R>::is_coroutine;
    static constexpr bool is_member = !std::is_void_v<C>;
    static constexpr std::size_t arity = sizeof...(P);
};

template <class F>
struct signature;
template <class R, class... P>
struct signature<R (*)(P...)> : signature_of<R, void, P...> {};
template <class R, class... P>
struct signature<R (*)(P...) noexcept> : signature_of<R, void, P...> {};
template <class R, class C, class... P>
struct signature<R (C::*)(P...)> : signature_of<R, C, P...> {};
template <class R, class C, class... P>
struct signature<R (C::*)(P...) const> : signature_of<R, C, P...> {};
template <class R, class C, class... P>
struct signature<R (C::*)(P...) noexcept> : signature_of<R, C, P...> {};
template <class R, class C, class... P>
struct signature<R (C::*)(P...) const noexcept> : signature_of<R, C, P...> {};

template <class T>
inline constexpr bool is_view = false;
template <class T, std::size_t N>
inline constexpr bool is_view<std::span<T, N>> = true;
template <>
inline constexpr bool is_view<std::string_view> = true;

/// A view, or something with one inside. `Above` are the aggregates that T is inside of.
template <class T, class... Above>
consteval bool holds_view() {
    if constexpr (is_view<T>)
        return true;
    else if constexpr (wire::detail::is_one_of<T, Above...> || wire::detail::custom<T>)
        return false;
    else if constexpr (wire::detail::is_array<T>)
        return holds_view<typename T::value_type, Above...>();
    else if constexpr (plain_aggregate<T>)
        return !wire::detail::all_fields<T>(
            []<class F>() { return !holds_view<std::remove_cvref_t<F>, T, Above...>(); });
    else if constexpr (requires(const T* t) {
                           []<template <class...> class Template, class... Items>(
                               const Template<Items...>*) {}(t);
                       })
        return []<template <class...> class Template, class... Items>(const Template<Items...>*) {
            return (false || ... || holds_view<std::remove_cvref_t<Items>, T, Above...>());
        }(static_cast<const T*>(nullptr));
    else
        return false;
}
template <class Tuple>
inline constexpr bool any_holds_view = false;
template <class... T>
inline constexpr bool any_holds_view<std::tuple<T...>> = (false || ... || holds_view<T>());

/// Checks one parameter type; gives true so that it can be folded.
template <class P>
consteval bool check_parameter() {
    using value = std::remove_cvref_t<P>;
    constexpr bool bare_pointer = std::is_pointer_v<value>;
    constexpr bool changes_callers =
        std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>;
    constexpr bool is_ref = unwrap_ref<value>::is_ref;
    static_assert(!bare_pointer,
                  "skein: a remote function cannot take a pointer: the object it points "
                  "to is in another process; take the value");
    static_assert(!changes_callers,
                  "skein: a remote function cannot take a non-const reference: the "
                  "caller's object is in another process; take it by value and "
                  "return the result");
    static_assert(!is_ref,
                  "skein: not supported: a remote function that takes a ref<T>; take T, the "
                  "ref is resolved before the call is sent");
    if constexpr (!bare_pointer && !changes_callers && !is_ref) {
        constexpr bool can_be_sent = wire::encodable<value>;
        static_assert(can_be_sent,
                      "skein: an argument type cannot be sent: make it a plain aggregate of "
                      "types that can (no base class; std::array, not a C array), or specialise "
                      "skein::wire::codec for it");
        return can_be_sent;
    } else {
        return false;
    }
}

template <class R>
consteval bool check_result() {
    static_assert(!std::is_pointer_v<R>,
                  "skein: a remote function cannot return a pointer: the object "
                  "it points to is in another process; return the value");
    if constexpr (std::is_void_v<R>) {
        return true;
    } else if constexpr (!std::is_pointer_v<R>) {
        constexpr bool can_be_sent = wire::encodable<R>;
        static_assert(can_be_sent,
                      "skein: the result type cannot be sent: make it a plain aggregate of "
                      "types that can (no base class; std::array, not a C array), or specialise "
                      "skein::wire::codec for it");
        if constexpr (can_be_sent) {
            constexpr bool is_owned = !holds_view<R>();
            static_assert(is_owned,
                          "skein: a remote function cannot return a span or string_view, nor "
                          "something that holds one: what it points to is in another process; "
                          "return a vector or string");
            return is_owned;
        } else {
            return false;
        }
    } else {
        return false;
    }
}

template <class Parameters>
struct parameter_check;
template <class... P>
struct parameter_check<std::tuple<P...>> {
    static constexpr bool ok = (true && ... && check_parameter<P>());
};

/// May an argument of type A be given for a parameter of type P?
template <class A, class P>
consteval bool fits() {
    using given = std::remove_cvref_t<A>;
    using wanted = std::remove_cvref_t<P>;
    if constexpr (unwrap_ref<given>::is_ref) {
        return std::is_convertible_v<const typename unwrap_ref<given>::type&, wanted> ||
               std::is_same_v<typename unwrap_ref<given>::type, wanted>;
    } else {
        return std::is_convertible_v<A&&, wanted>;
    }
}

template <class Parameters, class... A>
struct argument_check;
template <class... P, class... A>
struct argument_check<std::tuple<P...>, A...> {
    static consteval bool check() {
        static_assert(sizeof...(P) == sizeof...(A),
                      "skein: wrong number of arguments for this remote function");
        if constexpr (sizeof...(P) == sizeof...(A)) {
            constexpr bool all_fit = (true && ... && fits<A, P>());
            static_assert(all_fit,
                          "skein: an argument must be of the parameter's type, convertible to "
                          "it, or a ref to such a value");
            return all_fit;
        }
        return false;
    }
    static constexpr bool ok = check();
};

} // namespace rt::detail
} // namespace skein


// ======== skein/rt/registry.hpp, continued
#include <cstdint>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

namespace skein::rt {

namespace detail {
struct incoming_call;

/// FNV-1a with a final mix; stable across compilers and processes.
[[nodiscard]] constexpr std::uint64_t hash_text(std::string_view text) noexcept {
    fnv1a hash;
    hash.text(text);
    std::uint64_t h = hash.value();
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15;
    return h ^ (h >> 29);
}
[[nodiscard]] constexpr std::uint64_t hash_mix(std::uint64_t h, std::uint64_t value) noexcept {
    h ^= value + 0x9e3779b97f4a7c15 + (h << 6) + (h >> 2);
    return h * 0xff51afd7ed558ccd;
}
} // namespace detail

/// One callable of this program. Lives for ever; made by detail::record<...>.
struct function_record {
    const char* mangled = nullptr; ///< typeid name: unique per function
    const char* shown = nullptr;   ///< typeid name that the readable name comes from
    bool is_constructor = false;
    const std::type_info* actor = nullptr;            ///< of a method or constructor: whose
    bool is_coroutine = false;                        ///< starts from the run queue, in order
    void (*invoke)(detail::incoming_call&) = nullptr; ///< decodes, calls, replies
    std::uint64_t (*signature_hash)() = nullptr;
    std::string (*signature_text)() = nullptr;

    // Filled in by the registry.
    std::uint64_t key = 0, signature = 0;
    std::uint32_t index = 0;
    std::string name; ///< "app::score(app::row, float)"
    function_record* next = nullptr;
};

/// The sorted, numbered records of this program.
class registry {
public:
    /// The program's registry; built at first use. Aborts if two functions cannot be told apart.
    [[nodiscard]] static const registry& instance();

    /// Called before main for every remote function of the program.
    static void add(function_record& record);

    /// Sorts and numbers records.
    ///   errors  already_exists: two functions of one name in different files; mismatch: two names
    ///           with the same hash
    [[nodiscard]] static result<registry> build(std::vector<function_record*> records);

    [[nodiscard]] std::size_t size() const noexcept { return records_.size(); }
    /// nullptr if there is no such index.
    [[nodiscard]] const function_record* at(std::uint32_t index) const noexcept {
        return index < records_.size() ? records_[index] : nullptr;
    }
    /// Over all keys and signatures; equal in two processes that can call each other.
    [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }

private:
    /// "app::f(int)" for a function, "app::counter(int)" for a constructor.
    static std::string function_name(const function_record& r);

    static inline constinit function_record* first_ = nullptr;
    static inline constinit bool built_ = false;

    std::vector<function_record*> records_;
    std::uint64_t hash_ = 0x736b65696e;
};

} // namespace skein::rt


// ======== skein/rt/detail/registry.ipp
// The bodies of rt/registry.hpp.


#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE const registry& registry::instance() {
    static const registry built = [] {
        std::vector<function_record*> all;
        for (auto* r = first_; r != nullptr; r = r->next) all.push_back(r);
        built_ = true;
        auto made = build(std::move(all));
        SKEIN_CHECK(made, "{}", made.error().what());
        return std::move(*made);
    }();
    return built;
}

SKEIN_INLINE void registry::add(function_record& record) {
    SKEIN_CHECK(!built_,
                "remote function {} comes from a library that was loaded after the runtime "
                "started; link it into the program",
                readable_name(record.mangled));
    record.next = first_;
    first_ = &record;
}

SKEIN_INLINE std::string registry::function_name(const function_record& r) {
    const std::string mangled = r.shown != nullptr ? r.shown : r.mangled;
    // A tag<&app::f> has the mangled name of app::f inside, which tells its parameters too.
    const auto inner = mangled.find("XadL_Z");
    if (inner != std::string::npos && mangled.ends_with("EEEE")) {
        const auto name = mangled.substr(inner + 4, mangled.size() - inner - 8);
        const auto text = readable_name(name.c_str());
        if (text != name) return text;
    }
    auto text = readable_name(mangled.c_str());
    const auto open = text.find('<');
    if (open == std::string::npos || text.back() != '>') return text;
    text = text.substr(open + 1, text.size() - open - 2);
    if (!r.is_constructor) return text;
    int depth = 0; // the first comma outside of template arguments ends the class
    for (std::size_t i = 0; i < text.size(); ++i) {
        depth += text[i] == '<' ? 1 : text[i] == '>' ? -1 : 0;
        if (text[i] == ',' && depth == 0) return text.substr(0, i) + "(" + text.substr(i + 2) + ")";
    }
    return text + "()";
}

SKEIN_INLINE result<registry> registry::build(std::vector<function_record*> records) {
    registry made;
    for (auto* r : records) {
        r->key = detail::hash_text(r->mangled);
        r->name = function_name(*r);
        r->signature = r->signature_hash();
    }
    std::sort(records.begin(), records.end(), [](auto* a, auto* b) { return a->key < b->key; });
    for (std::size_t i = 0; i < records.size(); ++i) {
        auto& r = *records[i];
        r.index = static_cast<std::uint32_t>(i);
        made.hash_ = detail::hash_mix(detail::hash_mix(made.hash_, r.key), r.signature);
        if (i == 0 || records[i - 1]->key != r.key) continue;
        const auto& other = *records[i - 1];
        if (std::string_view(other.mangled) == r.mangled)
            return error(errc::already_exists,
                         fmt::format("two remote functions are both called {}", r.name))
                .with_hint("functions in anonymous namespaces or static ones of different files "
                           "share one name: give one of them another name or a namespace");
        return error(errc::mismatch, fmt::format("the names of remote functions {} and {} have the "
                                                 "same hash",
                                                 other.name, r.name))
            .with_hint("rename one of them");
    }
    made.records_ = std::move(records);
    return made;
}

} // namespace skein::rt

// ======== skein/rt/remote_error.hpp
// What the caller sees when a call failed on the other side.
//
// An exception that is not a skein::error arrives as remote_error with code remote_exception, and
// says which type it was, what it said, and which process threw it. A skein::error keeps its code.
//
//     try { co_await r; }
//     catch (const skein::remote_error& e) { fmt::print("{} on {}\n", e.remote_type(), e.worker()); }


#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace skein {

/// An error that happened while a call ran on a worker.
class remote_error : public error {
public:
    /// Where and what; worker, pid and host are those of the process that ran the call.
    struct origin {
        std::string worker, host;
        std::int64_t pid = 0;
        std::string type; ///< of the exception, e.g. "std::out_of_range"
        std::string text; ///< its what()
    };

    remote_error(error shown, std::shared_ptr<const origin> from)
        : error(std::move(shown)), from_(std::move(from)) {}

    [[nodiscard]] const std::string& worker() const noexcept { return from_->worker; }
    [[nodiscard]] const std::string& host() const noexcept { return from_->host; }
    [[nodiscard]] std::int64_t pid() const noexcept { return from_->pid; }
    /// The type of the exception as the worker's compiler names it.
    [[nodiscard]] const std::string& remote_type() const noexcept { return from_->type; }
    /// Its what().
    [[nodiscard]] const std::string& remote_text() const noexcept { return from_->text; }

private:
    std::shared_ptr<const origin> from_;
};

namespace rt {

/// Why a call failed: an error, and where it was thrown if it was thrown on another side.
struct failure {
    error what;
    std::shared_ptr<const remote_error::origin> from;

    [[noreturn]] void raise() const;
};

namespace detail {

/// Who executes, as failures and messages name it.
struct process_name {
    std::string name, host;
    std::int64_t pid = 0;

    /// "worker-1 (pid 7 at host)"
    [[nodiscard]] std::string describe() const;
};

} // namespace detail
} // namespace rt
} // namespace skein


// ======== skein/rt/detail/remote_error.ipp
// The bodies of rt/remote_error.hpp.

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE void failure::raise() const {
    if (from) throw remote_error(what, from);
    throw what;
}

SKEIN_INLINE std::string detail::process_name::describe() const {
    return fmt::format("{} (pid {} at {})", name, pid, host);
}

} // namespace skein::rt


// ======== skein/rt/detail/call.hpp, continued
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::rt {

struct peer;

/// A call on its way between two peers, unique among those of its submitter that have no outcome yet.
using slot_id = strong_id<struct slot_tag>;

namespace detail {

/// What appends arguments or a result to a message: any callable, borrowed for one call of a function.
class encoder {
public:
    template <class F>
        requires(std::is_invocable_v<F&, wire::writer&>)
    encoder(F&& append) noexcept // NOLINT: F is borrowed, not taken
        : object_(const_cast<void*>(static_cast<const void*>(std::addressof(append)))),
          call_([](void* o, wire::writer& to) {
              (*static_cast<std::remove_reference_t<F>*>(o))(to);
          }) {}
    void operator()(wire::writer& to) const { call_(object_, to); }

private:
    void* object_;
    void (*call_)(void*, wire::writer&);
};

enum class phase : std::uint8_t { preparing, queued, sent, started, done };
enum class call_kind : std::uint8_t { task, method, create };

class actor_state;

/// Arguments of a call that cannot be encoded yet because some are pending refs.
class deferred_arguments {
public:
    virtual ~deferred_arguments() = default;
    virtual void encode(wire::writer& to) = 0;
    /// The failure of a ref among them, if one failed.
    [[nodiscard]] virtual const failure* failed() const noexcept = 0;
};

/// The part of a call that knows nothing of its result type.
class call_base : public list_node<call_base> {
public:
    /// What few calls have; in detail/runtime_books.hpp.
    struct rarities;
    struct free_rarities {
        void operator()(rarities* r) const noexcept;
    };

    call_base() noexcept {}
    call_base(const call_base&) = delete;
    call_base& operator=(const call_base&) = delete;
    virtual ~call_base();

    void add_use() noexcept { ++uses_; }
    void drop_use() noexcept {
        if (--uses_ == 0) delete this;
    }
    [[nodiscard]] std::uint32_t uses() const noexcept { return uses_; }

    // Calls are made and freed a million times a second.
    static void* operator new(std::size_t bytes) {
        return skein::detail::frame_pool::allocate(bytes);
    }
    static void operator delete(void* p, std::size_t bytes) noexcept {
        skein::detail::frame_pool::release(p, bytes);
    }

    [[nodiscard]] bool is_done() const noexcept { return state == phase::done; }
    [[nodiscard]] bool failed() const noexcept { return failure_ != nullptr; }
    [[nodiscard]] const failure& why() const noexcept { return *failure_; }
    /// How errors call it.
    [[nodiscard]] std::string name() const;
    /// How far it got, for errors.
    [[nodiscard]] const char* progress() const noexcept;

    /// Ends the call with the encoded value, or with an error if the bytes are bad.
    void finish_with_bytes(byte_span value);
    void fail(failure why);

    rarities& extra();
    /// A handle that must live until the call is done.
    void keep(std::shared_ptr<void> handle);
    /// A call that takes this one's ref.
    void add_dependent(counted_ptr<call_base> call);

    intrusive_list<waiter, waiter> waiters;
    runtime* owner = nullptr; ///< nullptr: the runtime is gone, or the call is done
    const function_record* fn = nullptr;
    peer* on = nullptr; ///< where it was sent
    slot_id slot;
    std::uint64_t number = 0; ///< of its call_id, in the runtime's incarnation
    std::uint64_t order = 0;  ///< among the calls that were sent to `on`
    counted_ptr<call_context>
        parent; ///< the call that made it: it is linked there until it is done
    actor_id target;
    counted_ptr<actor_state> lane; ///< the handle it was called through
    byte_buffer body;              ///< encoded arguments while they have to be kept
    std::unique_ptr<rarities, free_rarities> rare;
    phase state = phase::preparing;
    call_kind kind = call_kind::task;
    std::uint8_t retries_left = 0;
    bool nested = false; ///< submitted by a worker: never waits for a free slot
    /// Not 0: a worker died while it ran. It waits for a worker with nothing to do, so many times at most, and
    /// nothing is sent behind it.
    std::uint8_t alone = 0;
    static constexpr std::uint8_t most_passes = 255;
    std::uint16_t cpus = 0;
    std::uint16_t lost_attempts = 0; ///< times it was sent to a worker that died: it may have run

protected:
    virtual result<void> take_value(byte_span value) = 0;
    virtual void take_failure(const failure&) {}
    virtual void on_finished() {}
    std::uint32_t watchers_ = 0; ///< refs and awaiters: those who may look at the outcome

private:
    void finished();
    void tell_unseen() const noexcept;
    void release_dependents();

    std::uint32_t uses_ = 0;
    std::unique_ptr<failure> failure_;
};

/// A caller's view of one actor: its id, and the calls that wait for their turn. Calls leave in the
/// order in which they were made, also when the argument of an earlier one is not there yet.
class actor_state {
public:
    void add_use() noexcept { ++uses_; }
    void drop_use() noexcept {
        if (--uses_ == 0) last_use_gone();
    }

    runtime* owner = nullptr;
    actor_id id;
    peer* on = nullptr;                          ///< where its calls go
    bool owned = false;                          ///< dropping the last handle ends the actor
    std::vector<counted_ptr<call_base>> waiting; ///< in order; [first_, end)
    std::size_t first = 0;
    std::optional<failure> lost; ///< set when its worker died

private:
    void last_use_gone() noexcept;
    std::uint32_t uses_ = 0;
};

/// Fills in what all calls have in common.
void apply_options(call_base& call, const function_record& fn, const call_options& how,
                   call_kind kind);
/// The runtime that a handle's calls go through; checks that there is one.
[[nodiscard]] runtime& runtime_of(const counted_ptr<actor_state>& lane);

} // namespace detail
} // namespace skein::rt


// ======== skein/rt/ref.hpp, continued
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace skein {

template <class T>
class ref;

namespace rt::detail {

/// A call and its value.
template <class T>
class ref_state : public call_base {
public:
    using stored = std::conditional_t<std::is_void_v<T>, std::monostate, T>;
    std::optional<stored> value;

    // The runtime counts a call as a call_base, users count it as what it is: a failure that no user
    // can see any more is logged.
    void add_use() noexcept {
        ++watchers_;
        call_base::add_use();
    }
    void drop_use() noexcept {
        --watchers_;
        call_base::drop_use();
    }

protected:
    result<void> take_value(byte_span bytes) override {
        if constexpr (std::is_void_v<T>) {
            (void)bytes;
            value.emplace();
            return {};
        } else {
            auto decoded = wire::decode<T>(bytes);
            if (!decoded) return decoded.error();
            value.emplace(std::move(*decoded));
            return {};
        }
    }
};

void cancel_call(call_base& call) noexcept;

/// Suspends until the call is done. Cancelling the awaiting task ends the wait, not the call.
template <class T, bool Move>
class ref_awaiter : public waiter {
public:
    explicit ref_awaiter(counted_ptr<ref_state<T>> call) noexcept : state_(std::move(call)) {}
    bool await_ready() const noexcept { return state_->is_done(); }
    template <skein::detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        if (!arm(h)) return false;
        state_->waiters.push_back(*this);
        return true;
    }
    T await_resume() {
        // A value that is there is delivered even to a cancelled task.
        if (!state_->is_done()) throw_if_cancelled();
        if (state_->failed()) state_->why().raise();
        if constexpr (!std::is_void_v<T>) {
            if constexpr (Move) {
                if (state_->uses() == 1 || !std::is_copy_constructible_v<T>)
                    return std::move(*state_->value);
            }
            if constexpr (std::is_copy_constructible_v<T>) return *state_->value;
        }
    }

private:
    counted_ptr<ref_state<T>> state_;
};

} // namespace rt::detail

/// A counted reference to the result of one remote call; one pointer wide. Belongs to one loop.
template <class T>
class ref {
public:
    using value_type = T;

    ref() noexcept = default;
    explicit ref(counted_ptr<rt::detail::ref_state<T>> call) noexcept : state_(std::move(call)) {}

    /// False if default-constructed or moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(state_); }
    /// True when awaiting it would not suspend.
    [[nodiscard]] bool ready() const noexcept { return state_->is_done(); }

    /// Suspends until the call is done, resumes from the loop's queue; gives a copy of the value.
    ///   errors  remote_error (the function threw), worker_lost, timeout (.deadline), cancelled
    auto operator co_await() const& noexcept {
        static_assert(std::is_void_v<T> || std::is_copy_constructible_v<T>,
                      "skein: this result cannot be copied: co_await std::move(ref) takes it out");
        return rt::detail::ref_awaiter<T, false>(state_);
    }
    /// The same, but takes the value out when this is the last ref to it.
    auto operator co_await() && noexcept {
        return rt::detail::ref_awaiter<T, true>(std::move(state_));
    }

    /// Asks the call to end: at once if it has not been sent, else at its next await on the worker.
    /// The ref then fails with errc::cancelled, unless a value comes first.
    void cancel() const noexcept { rt::detail::cancel_call(*state_); }

    [[nodiscard]] const counted_ptr<rt::detail::ref_state<T>>& state() const noexcept {
        return state_;
    }

private:
    counted_ptr<rt::detail::ref_state<T>> state_;
};

/// A task that ends with the ref: what all, any, race, as_completed and with_timeout use.
template <class T>
[[nodiscard]] task<T> as_task(ref<T> r) {
    co_return co_await std::move(r);
}

/// Waits for the outcome and gives it as a value or error instead of throwing.
template <class T>
[[nodiscard]] task<result<T>> as_result(ref<T> r) {
    return as_result(as_task(std::move(r)));
}

/// Waits at most so long. The call itself goes on; use .with({.deadline = ...}) to bound the call.
template <class T>
[[nodiscard]] task<T> with_timeout(ref<T> r, duration limit) {
    return with_timeout(as_task(std::move(r)), limit);
}

} // namespace skein


// ======== skein/rt/runtime.hpp
// runtime: what one process needs to call and to be called. It turns calls into frames, frames into calls, and keeps the
// books: which call is where, which actor lives on which worker, what was lost when one died.
//
// A driver has one link to each of its workers, places tasks on them and knows every actor. A worker
// has one link, to its driver, executes what arrives in order on its loop, and sends its own calls
// through the driver. Both run unchanged on the real and on the simulated loop.
//
//     rt::runtime driver(rt::runtime_options{"driver", "here", 1});
//     auto serving = driver.serve_worker(connection, nullptr);   // one task per worker
//     auto r = skein::remote<&f>.on(driver)(7);                  // or remote<&f>(7): the current one
//
// Programs use skein::run, which makes the runtime and its workers.


// ======== skein/rt/detail/claims.hpp
// claims: memory that a worker and its driver on the same host share, where the worker notes each call before it
// runs it. So the driver knows exactly what a dead worker has begun, and can take back what has been sent and not
// begun, without the worker's help: a call that waits behind a long one is cancelled or moved at once.
//
//     claims page(shared_memory::create(claims::bytes));   // driver; the memory goes to the worker
//     claims page(boot->memory);                           // worker
//     if (page.begin()) run(call);               // worker, for each call in the order in which they were sent
//     if (page.take_back(n)) send_elsewhere(n);  // driver, the n-th call that it sent: 1, 2, ...
//
// Entry n mod `entries` holds 2n when call n has begun and 2n + 1 when it was taken back: one exchange on the
// worker's side, one compare-and-swap on the driver's, and whoever comes first has it. Nothing is ever cleared, so
// in the ordinary course the driver touches no line of it.


#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace skein::rt::detail {

/// One end of such a page. Copies share the page and each count for themselves: one per side.
class claims {
public:
    /// So many calls after the last one begun can be taken back.
    static constexpr std::uint64_t entries = 4096;

    /// No page: everything that was sent may have begun.
    claims() noexcept = default;
    ///   errors  malformed: the memory is not of the size of a page of claims
    explicit claims(shared_memory in);

    explicit operator bool() const noexcept { return page_ != nullptr; }

    // The worker's side.

    /// The next call is about to run. False: it was taken back, leave it out.
    [[nodiscard]] bool begin() noexcept {
        if (!page_) return true;
        const std::uint64_t n = ++last_;
        const auto before = page_->entry[n % entries].exchange(2 * n, std::memory_order_acq_rel);
        page_->begun.store(n, std::memory_order_release);
        return before != 2 * n + 1 && !page_->closed.load(std::memory_order_acquire);
    }

    // The driver's side.

    /// The last one that has begun; 0: none, or it is not known.
    [[nodiscard]] std::uint64_t last_begun() const noexcept {
        return page_ ? page_->begun.load(std::memory_order_acquire) : 0;
    }
    /// True: call n is over or under way. False: it was not when this was asked.
    [[nodiscard]] bool has_begun(std::uint64_t n) const noexcept {
        if (!page_) return true;
        const auto now = page_->entry[n % entries].load(std::memory_order_acquire);
        if (now == 2 * n || now == 2 * n + 1) return now == 2 * n;
        return n <= page_->begun.load(std::memory_order_acquire);
    }
    /// No call begins from now on; `sent` is the last one. A worker that lives on behind a
    /// broken connection only passes them by; what it has passed by may be told as begun later.
    void close(std::uint64_t sent) noexcept {
        if (!page_) return;
        page_->closed.store(true, std::memory_order_release);
        // The worker cannot get past these without having seen that.
        const auto first = page_->begun.load(std::memory_order_acquire) + 1;
        for (auto n = first; n <= sent && n - first < entries; ++n) (void)take_back(n);
    }
    /// True: call n will not run; it was sent and had not begun.
    [[nodiscard]] bool take_back(std::uint64_t n) noexcept {
        if (!page_) return false;
        const auto begun = page_->begun.load(std::memory_order_acquire);
        // Further ahead the entry still belongs to an earlier call.
        if (n <= begun || n - begun > entries) return false;
        auto& entry = page_->entry[n % entries];
        auto now = entry.load(std::memory_order_acquire);
        return now < 2 * n &&
               entry.compare_exchange_strong(now, 2 * n + 1, std::memory_order_acq_rel);
    }

private:
    struct page {
        alignas(64) std::atomic<std::uint64_t> begun{0};
        alignas(64) std::atomic<bool> closed{false};
        alignas(64) std::array<std::atomic<std::uint64_t>, entries> entry{};
    };
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared by processes");

    shared_memory memory_;
    page* page_ = nullptr; ///< in memory_
    std::uint64_t last_ = 0;

public:
    static constexpr std::size_t bytes = sizeof(page);
};

} // namespace skein::rt::detail


// ======== skein/rt/detail/claims.ipp
// The bodies of rt/detail/claims.hpp.


#include <utility>

namespace skein::rt::detail {

SKEIN_INLINE claims::claims(shared_memory in) : memory_(std::move(in)) {
    if (memory_.bytes().size() != bytes)
        throw error(errc::malformed,
                    "the memory that a worker shares with its driver has not the size "
                    "of a page of claims");
    // Zeros are what its constructor would make of it, and it has no destructor.
    page_ = reinterpret_cast<page*>(memory_.bytes().data());
}

} // namespace skein::rt::detail


// ======== skein/rt/runtime.hpp, continued
#include <cstdint>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

namespace skein::net {
class connection;
struct frame_view;
} // namespace skein::net

namespace skein::wire {
class reader;
}

namespace skein::rt {

/// Who this process is.
struct runtime_options {
    std::string name = "driver"; ///< as errors name it: "worker-2"
    std::string host = "localhost";
    std::int64_t pid = 0;
    /// Of this start of this process, see unique_number. 0: drawn; a simulated world draws its own.
    std::uint64_t incarnation = 0;
};

/// Counts since it was made.
struct runtime_stats {
    std::uint64_t submitted = 0, done = 0, failed = 0; ///< calls of this process
    std::uint64_t executed = 0;                        ///< calls that ran here
    std::uint64_t retried = 0, workers_lost = 0;
};

namespace detail {

struct call_head;

/// An actor where it lives.
struct actor_box {
    explicit actor_box(const std::type_info& t) noexcept : type(t) {}
    virtual ~actor_box() = default;
    const std::type_info& type;
    std::size_t not_started = 0; ///< calls that arrived and wait in the run queue, in order
};

/// A call that arrived, while it is being looked at.
struct incoming_call {
    runtime& self;
    const std::shared_ptr<peer>& from;
    slot_id slot;
    const function_record& fn;
    actor_id target;
    wire::reader& arguments;
    std::shared_ptr<actor_box> box; ///< of a method's actor

    /// The arguments cannot be read: tells the submitter.
    void refuse(const error& why) const;
    /// The call has thrown the exception that is being handled: tells the submitter.
    void reply_thrown() const;
};

[[noreturn]] void no_current_runtime();

} // namespace detail

/// The runtime of one process; belongs to one loop. Close it before it is destroyed.
class runtime {
public:
    explicit runtime(runtime_options who);
    runtime(const runtime&) = delete;
    runtime& operator=(const runtime&) = delete;
    ~runtime();

    /// The runtime that remote<&f>(...) and actor<T>(...) use: that of the task that runs now, else the one
    /// that `use` has put in place on this thread.
    [[nodiscard]] static runtime& current() {
        auto* const here = try_current();
        if (here == nullptr) detail::no_current_runtime();
        return *here;
    }
    [[nodiscard]] static runtime* try_current() noexcept {
        const auto* context = detail::call_context::current();
        return context != nullptr ? context->where() : current_;
    }
    /// Runs work, and all that it awaits and spawns, as tasks of this runtime. Several runtimes may do so on
    /// one loop.
    template <class T>
    [[nodiscard]] task<T> run_here(task<T> work) {
        return with_context(root_context(), std::move(work));
    }
    /// Makes a runtime the current one of this thread while it lives, for all that is no task of another.
    class use {
    public:
        explicit use(runtime& n) noexcept : before_(std::exchange(current_, &n)) {}
        use(const use&) = delete;
        use& operator=(const use&) = delete;
        ~use() { current_ = before_; }

    private:
        runtime* before_;
    };

    /// The runtime whose incoming call is being decoded on this thread, if any.
    [[nodiscard]] static runtime* executing() noexcept { return executing_; }
    /// The call whose arguments are being encoded on this thread, if any.
    [[nodiscard]] static detail::call_base* encoding() noexcept { return encoding_; }

    /// What follows the end of a worker's link: waits for the process and says how it ended, e.g.
    /// "killed by signal 9 (SIGKILL)". May be empty.
    using obituary = unique_function<task<std::string>(const peer&)>;

    /// Driver: takes a worker in and serves it until it has gone; then settles the calls it took
    /// along. Never throws but for cancellation, which aborts the link. page: what both share, if they
    /// are on one host.
    [[nodiscard]] task<void> serve_worker(std::shared_ptr<net::connection> wire, obituary after,
                                          detail::claims page = {});
    /// Worker: executes the driver's calls until it has gone; cancels what still runs and waits for it.
    [[nodiscard]] task<void> serve_driver(std::shared_ptr<net::connection> wire,
                                          detail::claims page = {});
    /// Says goodbye to all peers; calls that are not done fail with errc::closed.
    [[nodiscard]] task<void> close();

    /// Driver: called once, when the first call needs a worker.
    void on_first_call(unique_function<void()> start);
    /// Driver: how many workers there are or will soon be. New actors wait for them, to be spread.
    void expect_workers(std::size_t n);
    /// Driver: there will be no more workers; fails what waits for one, now and later.
    void give_up(error why);

    [[nodiscard]] const detail::process_name& name() const noexcept;
    [[nodiscard]] std::uint64_t incarnation() const noexcept;
    [[nodiscard]] std::size_t workers() const noexcept;
    [[nodiscard]] const runtime_stats& stats() const noexcept;
    /// Calls without an outcome yet.
    [[nodiscard]] std::size_t pending() const noexcept;
    /// Actors that live in this process.
    [[nodiscard]] std::size_t actors() const noexcept;
    /// Coroutines that run here for other processes.
    [[nodiscard]] std::size_t running() const noexcept;
    [[nodiscard]] bool is_driver() const noexcept;

    // For remote<>, actor<> and the invokers of registered functions.

    /// Submits a call whose arguments are there; encode(writer&) appends them.
    void submit(counted_ptr<detail::call_base> call, detail::encoder encode);
    /// Submits a call that waits for refs: it is sent when `pending` argument_ready() have come.
    void submit_deferred(const counted_ptr<detail::call_base>& call, std::size_t pending,
                         std::unique_ptr<detail::deferred_arguments> arguments);
    void argument_ready(detail::call_base& call);
    void cancel(detail::call_base& call) noexcept;
    void deadline_passed(detail::call_base& call);
    void drop_actor(detail::actor_state& lane) noexcept;
    /// The state behind handles to an actor: one per runtime and actor, so that order is kept.
    [[nodiscard]] counted_ptr<detail::actor_state> actor_lane(actor_id id);
    [[nodiscard]] actor_id new_actor_id() noexcept;
    /// What the tasks of this process that are no call belong to.
    [[nodiscard]] counted_ptr<task_context> root_context() const noexcept;

    void reply(peer& to, slot_id id, detail::encoder encode);
    void reply_failure(peer& to, slot_id id, const failure& why);
    /// The same for the exception that is being handled.
    void reply_thrown(peer& to, slot_id id, const function_record& fn);
    void insert_actor(actor_id id, std::shared_ptr<detail::actor_box> box);
    /// Runs a coroutine call; it replies by itself.
    void start(detail::incoming_call& call, task<void> work);
    void count_outcome(bool failed) noexcept;

private:
    struct books; // in detail/runtime_books.hpp
    struct arrival;
    struct losses;

    void on_frame(const std::shared_ptr<peer>& from, const net::frame_view& f);
    [[nodiscard]] detail::call_base* call_at(const peer& from, slot_id id);
    void on_reply(peer& from, const net::frame_view& f);
    void on_cancel(peer& from, slot_id id);
    void on_drop(peer& from, byte_span body);
    static void send_drop(peer& to, actor_id id);
    void settle_create(peer& from, const detail::call_base& call, std::uint16_t outcome);
    void arrived(const std::shared_ptr<peer>& from, const net::frame_view& f);
    task<void> run_backlog();
    [[nodiscard]] detail::call_context& context_for(const detail::call_head& head,
                                                    const function_record& fn);
    void adopt_child(detail::call_base& call);
    void execute_waiting(const arrival& one);
    void send_scratch(peer& to, std::uint16_t outcome, slot_id id);
    void execute(const std::shared_ptr<peer>& from, slot_id id, byte_span body,
                 std::shared_ptr<detail::actor_box> box, time_point came);
    task<void> execute_later(std::shared_ptr<peer> from, slot_id id, byte_buffer body,
                             std::shared_ptr<detail::actor_box> box, time_point came);
    task<void> run_call(std::shared_ptr<peer> from, slot_id id, task<void> work);
    task<void> tell_started(std::shared_ptr<peer> to);
    void forward(peer& from, const net::frame_view& f);

    std::shared_ptr<peer> attach(std::shared_ptr<net::connection> wire, detail::claims page);
    void listen_to(const std::shared_ptr<peer>& l);
    [[nodiscard]] task<void> wait_end(std::shared_ptr<peer> l);
    void lose(peer& l, const std::string& how);
    void take_lost(peer& l, losses& into);
    std::vector<actor_id> forget_actors(const peer& l);
    void drop_orphan(actor_id id);
    void fail_lost(losses& lost);
    void run_again(const losses& lost);
    void fail_lane(detail::actor_state& lane);

    [[nodiscard]] bool prepare(detail::call_base& call);
    [[nodiscard]] bool encode_call(wire::writer& to, detail::call_base& call,
                                   detail::encoder encode);
    void settle_ready(const counted_ptr<detail::call_base>& call);
    void place(counted_ptr<detail::call_base> call);
    void drain(detail::actor_state& lane);
    void pump();
    void pump(detail::call_kind which);
    peer* pick(const detail::call_base& call, bool& possible);
    void send(peer& to, counted_ptr<detail::call_base> call);
    void transmit(peer& to, detail::call_base& call, byte_span body, byte_buffer* owned);
    void account(peer& from, const detail::call_base& call);
    [[nodiscard]] bool take_back(detail::call_base& call);
    void feed(peer& idle);
    [[nodiscard]] std::size_t prune_tasks(peer& of);
    void remember_task(peer& to, const detail::call_base& call);
    [[nodiscard]] bool has_own_incarnation(const peer& newcomer) const;
    slot_id take_slot(counted_ptr<detail::call_base> call);
    counted_ptr<detail::call_base> free_slot(slot_id id);
    void refuse(detail::call_base& call, error why);

    static inline constinit thread_local runtime* current_ = nullptr;
    static inline constinit thread_local runtime* executing_ = nullptr;
    static inline constinit thread_local detail::call_base* encoding_ = nullptr;

    std::unique_ptr<books> books_;
};

} // namespace skein::rt


// ======== skein/rt/detail/call.ipp
// The bodies of rt/detail/call.hpp: how a call ends, and who is told.


// ======== skein/rt/detail/runtime_books.hpp
// The books of rt/runtime.hpp: what only the bodies of runtime and of its calls see.


// ======== skein/rt/detail/message.hpp
// What nodes say to each other: frame kinds, the head of a call, and how a failure travels.
//
//     call     id = the call, body = call_head + arguments         submitter -> executor
//     reply    id = the call, flags: ok or failed, body = value or wire_failure
//     started  id = the call: it runs and has suspended            executor -> submitter
//     cancel   id = the call                                       submitter -> executor
//     drop     body = the actor: its last handle is gone            owner -> worker


#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>

namespace skein::rt::detail {

enum message : std::uint16_t {
    message_call = 1,
    message_reply = 2,
    message_started = 3,
    message_cancel = 4,
    message_drop = 5,
};
inline constexpr std::uint16_t reply_ok = 0, reply_failed = 1;

/// In front of the arguments; a multiple of 16 bytes, so that what follows stays aligned: 16 for a task of a
/// driver, 16 more for the actor, 48 more for who asks, if that is not the peer's own first call.
struct call_head {
    std::uint32_t function = 0;
    call_kind kind = call_kind::task;
    std::uint8_t retries = 0;
    std::uint16_t cpus = 0;
    actor_id target; ///< none for tasks
    lineage who;
    bool is_told = false; ///< who travels, not its number alone

    static constexpr std::uint8_t told_bit = 0x80;
    /// Where what is left of the deadline stands, in a call that tells who asks.
    [[nodiscard]] static constexpr std::size_t left_at(call_kind kind) noexcept {
        return kind == call_kind::task ? 24 : 40;
    }

    void encode(wire::writer& to, time_point now) const {
        to.fixed(function);
        to.fixed(
            static_cast<std::uint8_t>(static_cast<std::uint8_t>(kind) | (is_told ? told_bit : 0)));
        to.fixed(retries);
        to.fixed(cpus);
        to.fixed(who.id.value().number);
        if (kind != call_kind::task) put(to, target.value());
        if (!is_told) return;
        to.fixed(who.id.value().incarnation);
        // Clocks of hosts differ: what is left of the time travels.
        const bool has_end = who.until != time_point::max();
        to.fixed(has_end ? std::max<std::int64_t>((who.until - now).count(), 0) : std::int64_t{-1});
        put(to, who.trace.value());
        put(to, who.parent.value());
    }
    /// False if the bytes are too short or not a call. `sender` is whose calls are not told.
    bool decode(wire::reader& from, std::uint64_t sender, time_point now) {
        std::uint8_t how = 0;
        unique_number id{sender, 0}, actor, trace, parent;
        if (!from.fixed(function) || !from.fixed(how) || !from.fixed(retries) ||
            !from.fixed(cpus) || !from.fixed(id.number))
            return false;
        is_told = (how & told_bit) != 0;
        kind = static_cast<call_kind>(how & ~told_bit);
        if (kind > call_kind::create) return false;
        if (kind != call_kind::task && !get(from, actor)) return false;
        target = actor_id(actor);
        who.id = who.trace = call_id(id);
        if (!is_told) return true;
        std::int64_t left = -1;
        if (!from.fixed(id.incarnation) || !from.fixed(left) || !get(from, trace) ||
            !get(from, parent) || left < -1)
            return false;
        who = {call_id(id), call_id(trace), call_id(parent)};
        if (left >= 0) who.until = deadline_after(now, duration(left));
        return true;
    }

private:
    static void put(wire::writer& to, const unique_number& n) {
        to.fixed(n.incarnation);
        to.fixed(n.number);
    }
    static bool get(wire::reader& from, unique_number& n) {
        return from.fixed(n.incarnation) && from.fixed(n.number);
    }
};

/// What a worker tells of itself in identity::extra.
struct worker_hello {
    std::uint16_t cpus = 1;
    bool shares_memory = false;    ///< it has the page of claims that its driver gave it
    std::uint64_t incarnation = 0; ///< of its process, see unique_number
};

void encode_failure(wire::writer& to, const failure& f);
[[nodiscard]] failure decode_failure(byte_span body);

/// The exception that a call of `function` threw here, ready to travel.
[[nodiscard]] failure failure_of(const std::exception_ptr& thrown, const function_record& function,
                                 const process_name& here);

} // namespace skein::rt::detail


// ======== skein/rt/detail/message.ipp
// The bodies of rt/detail/message.hpp: how a failure travels.


#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include <cxxabi.h>

namespace skein::rt::detail {

/// A failure on its way.
struct wire_failure {
    skein::error what{errc::unknown, ""};
    bool thrown = false; ///< the four fields below say who threw what
    std::string worker, host, type, text;
    std::int64_t pid = 0;
};

SKEIN_INLINE void encode_failure(wire::writer& to, const failure& f) {
    wire_failure out;
    out.what = f.what;
    if (f.from) {
        out.thrown = true;
        out.worker = f.from->worker;
        out.host = f.from->host;
        out.type = f.from->type;
        out.text = f.from->text;
        out.pid = f.from->pid;
    }
    wire::encode(to, out.what);
    wire::encode(to, out.thrown);
    if (!out.thrown) return;
    for (const auto* s : {&out.worker, &out.host, &out.type, &out.text}) wire::encode(to, *s);
    wire::encode(to, out.pid);
}

SKEIN_INLINE failure decode_failure(byte_span body) {
    wire::reader in(body);
    wire_failure got;
    wire::detail::read(in, got.what);
    wire::detail::read(in, got.thrown);
    if (in.ok() && got.thrown) {
        for (auto* s : {&got.worker, &got.host, &got.type, &got.text}) wire::detail::read(in, *s);
        wire::detail::read(in, got.pid);
    }
    if (!in.finish()) return {in.status().error(), nullptr};
    failure out{std::move(got.what), nullptr};
    if (got.thrown) {
        auto from = std::make_shared<remote_error::origin>();
        from->worker = std::move(got.worker);
        from->host = std::move(got.host);
        from->type = std::move(got.type);
        from->text = std::move(got.text);
        from->pid = got.pid;
        out.from = std::move(from);
    }
    return out;
}

/// Puts "function on worker-1 (pid 7 at host)" in front of an error's where.
SKEIN_INLINE error located(const error& e, const std::string& place) {
    error out(e.code(), e.text());
    out.with_where(e.where().empty() ? place : place + ": " + e.where());
    if (!e.cause().empty()) out.with_cause(e.cause());
    if (!e.hint().empty()) out.with_hint(e.hint());
    return out;
}

SKEIN_INLINE failure failure_of(const std::exception_ptr& thrown, const function_record& function,
                                const process_name& here) {
    const auto place = function.name + " on " + here.describe();
    auto from = std::make_shared<remote_error::origin>();
    from->worker = here.name;
    from->host = here.host;
    from->pid = here.pid;
    try {
        std::rethrow_exception(thrown);
    } catch (const remote_error& e) { // of a call that this call made
        from->worker = e.worker();
        from->host = e.host();
        from->pid = e.pid();
        from->type = e.remote_type();
        from->text = e.remote_text();
        return {located(e, place), std::move(from)};
    } catch (const error& e) {
        from->type = readable_name(typeid(e).name());
        from->text = e.what();
        return {located(e, place), std::move(from)};
    } catch (const std::exception& e) {
        from->type = readable_name(typeid(e).name());
        from->text = e.what();
    } catch (...) {
        const auto* type = abi::__cxa_current_exception_type();
        from->type = type != nullptr ? readable_name(type->name()) : "unknown";
        from->text = "not a std::exception";
    }
    error shown(errc::remote_exception, from->type + ": " + from->text);
    shown.with_where(place);
    return {std::move(shown), std::move(from)};
}

} // namespace skein::rt::detail


// ======== skein/rt/detail/runtime_books.hpp, continued
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace skein::rt {

namespace detail {

struct running_call {
    cancel_source stop;
    counted_ptr<call_context> context;
    bool told = false; ///< the submitter knows that it has started
};

struct call_base::rarities {
    std::string name;
    std::unique_ptr<deferred_arguments> arguments;
    std::size_t pending = 0;                        ///< refs among the arguments not done yet
    std::vector<counted_ptr<call_base>> dependents; ///< calls that take this one's ref
    std::vector<std::shared_ptr<void>> kept;        ///< handles that must live until the end
    struct deadline_timer : timer_node {
        explicit deadline_timer(call_base& c)
            : timer_node([](timer_node& t) { static_cast<deadline_timer&>(t).passed(); }), call(c) {
        }
        void passed();
        call_base& call;
    };
    std::optional<deadline_timer> deadline;
    duration limit = no_deadline;
    time_point until{};        ///< when the deadline is
    bool is_inherited = false; ///< the limit, from the call that made this one
    bool cancel_requested = false;
};

} // namespace detail

using peer_id = strong_id<struct peer_tag>;

/// A connection as the runtime sees it. Owned by the task that serves it.
struct peer {
    std::shared_ptr<net::connection> wire;
    peer_id number;
    std::string who;               ///< "worker-2 (pid 4711 at host)"
    std::uint64_t incarnation = 0; ///< of its process, as it says
    bool up = true;
    error why{errc::closed, "closed"}; ///< once it has ended
    bool orderly = false;
    event ended;

    // Placement of tasks: `busy` cores are asked for; up to capacity * window at a time, where the
    // window grows until about a millisecond of work is under way (long tasks: one per core).
    std::uint32_t capacity = 1, busy = 0, window = 1;
    double service = 1e-3; ///< seconds per task, smoothed
    time_point mark{};     ///< since when `finished` counts
    std::uint32_t finished = 0;
    std::size_t actors = 0;

    // What the worker has begun, and the tasks that can be taken back from it, in the order in which they
    // were sent; some are done.
    struct waiting_task {
        slot_id slot;
        std::uint64_t order;
    };
    detail::claims page;
    std::uint64_t sent = 0;                   ///< calls
    const detail::call_base* alone = nullptr; ///< a task behind which no other is sent
    std::deque<waiting_task> tasks;
    std::size_t prune_at = 2 * detail::claims::entries;

    // What runs for this peer: coroutines here, and calls that the driver passed on for a worker.
    std::unordered_map<slot_id, detail::running_call> running;
    std::unordered_map<slot_id, detail::call_base*> forwarded;
};

/// A call or drop that waits behind calls that have run for long.
struct runtime::arrival {
    std::shared_ptr<peer> from;
    slot_id slot;
    byte_buffer body;
    bool is_drop = false;
    time_point came{};
};

struct runtime::books {
    using call_line = std::deque<counted_ptr<detail::call_base>>;
    struct slot {
        counted_ptr<detail::call_base> call;
        std::uint32_t generation = 1;
    };
    struct actor_entry {
        peer* where = nullptr;
        peer_id owner; ///< of the link that holds its handle; none: this process
        const std::type_info* type = nullptr;
    };
    detail::process_name name;
    runtime_stats stats;
    std::vector<std::shared_ptr<peer>> links; ///< of a driver
    peer* upstream = nullptr;                 ///< of a worker
    std::uint64_t incarnation = 0, last_link = 0, last_actor = 0, last_call = 0;
    counted_ptr<detail::runtime_anchor> anchor;
    counted_ptr<detail::call_context> root,
        spare; ///< of tasks that are no call; for the next plain call

    std::vector<slot> slots;
    std::vector<std::uint32_t> free;
    call_line queue, creations;                        ///< wait for a worker
    std::vector<counted_ptr<detail::call_base>> ready; ///< their arguments are there
    bool settling = false;

    std::unordered_map<actor_id, detail::actor_state*> lanes;
    std::unordered_map<actor_id, actor_entry> actors; ///< of a driver
    std::unordered_map<actor_id, std::shared_ptr<detail::actor_box>> boxes;

    unique_function<void()> start_workers;
    std::optional<error> given_up;
    std::size_t expected = 0;
    bool closing = false;
    scope calls;                ///< coroutine calls that run here
    std::vector<slot_id> fresh; ///< started in this turn
    /// Linked from the first call of a turn of the loop to its end.
    struct turn_mark : turn_hook {
        turn_mark() noexcept : turn_hook([](turn_hook&) {}) {}
    } in_turn;
    time_point turn_began{};
    std::deque<arrival> backlog;
    std::size_t backlog_bytes = 0;
    bool backlog_full = false;            ///< nothing more is read for it
    bool has_backlog = false;             ///< calls go there; run_backlog() is at work
    std::unordered_set<slot_id> unwanted; ///< calls in it that were cancelled
    wire::writer scratch;
};

} // namespace skein::rt


// ======== skein/rt/detail/call.ipp, continued
#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

SKEIN_INLINE call_base::~call_base() = default;

SKEIN_INLINE void call_base::free_rarities::operator()(rarities* r) const noexcept { delete r; }

SKEIN_INLINE call_base::rarities& call_base::extra() {
    if (!rare) rare.reset(new rarities);
    return *rare;
}

SKEIN_INLINE void call_base::keep(std::shared_ptr<void> handle) {
    extra().kept.push_back(std::move(handle));
}

SKEIN_INLINE void call_base::add_dependent(counted_ptr<call_base> call) {
    extra().dependents.push_back(std::move(call));
}

SKEIN_INLINE std::string call_base::name() const {
    if (rare && !rare->name.empty()) return rare->name;
    return fn != nullptr ? fn->name : std::string("a forwarded call");
}

SKEIN_INLINE const char* call_base::progress() const noexcept {
    if (state == phase::started) return "had started";
    return state == phase::sent || lost_attempts > 0 ? "may have run" : "did not run";
}

SKEIN_INLINE void call_base::finish_with_bytes(byte_span value) {
    if (auto taken = take_value(value); !taken) return fail({taken.error(), nullptr});
    finished();
}

SKEIN_INLINE void call_base::fail(failure why) {
    failure_ = std::make_unique<rt::failure>(std::move(why));
    take_failure(*failure_);
    finished();
}

SKEIN_INLINE void call_base::rarities::deadline_timer::passed() {
    if (call.owner != nullptr) call.owner->deadline_passed(call);
}

/// A failure whose refs are all gone is told to the log: the first ones of a thread, then ever fewer.
SKEIN_INLINE void call_base::tell_unseen() const noexcept {
    static constinit thread_local std::uint64_t unseen = 0;
    constexpr std::uint64_t all_of_the_first = 8;
    const auto code = why().what.code();
    if (code == errc::cancelled || code == errc::closed) return; // somebody asked for that
    if (++unseen > all_of_the_first && !std::has_single_bit(unseen)) return;
    try {
        logging::warn("rt",
                      fmt::format("a call failed and nobody holds its ref: {}", why().what.what()),
                      {{"failed_unseen", unseen}});
    } catch (...) { // no memory for a line
    }
}

SKEIN_INLINE void call_base::finished() {
    // A forwarded call is the business of the worker that made it.
    if (failed() && watchers_ == 0 && !nested && owner != nullptr) tell_unseen();
    if (owner != nullptr) std::exchange(owner, nullptr)->count_outcome(failure_ != nullptr);
    state = phase::done;
    if (rare && rare->deadline) rare->deadline->cancel();
    if (rare) {
        rare->kept.clear();
        rare->arguments.reset(); // a chain of calls must not be freed from its end in one go
    }
    lane = {};
    list_node<call_base>::unlink();
    parent = {};
    on_finished();
    while (!waiters.empty()) waiters.front().wake();
    if (rare && !rare->dependents.empty()) release_dependents();
}

SKEIN_INLINE void call_base::release_dependents() {
    for (const auto& call : std::exchange(rare->dependents, {}))
        if (call->owner != nullptr) call->owner->argument_ready(*call);
}

SKEIN_INLINE void actor_state::last_use_gone() noexcept {
    if (owner != nullptr) owner->drop_actor(*this);
    delete this;
}

SKEIN_INLINE void cancel_call(call_base& call) noexcept {
    if (call.owner != nullptr) call.owner->cancel(call);
}

SKEIN_INLINE void apply_options(call_base& call, const function_record& fn, const call_options& how,
                                call_kind kind) {
    SKEIN_CHECK(how.cpus >= 0 && how.cpus < 65536, ".cpus = {} is not a number of cores", how.cpus);
    call.fn = &fn;
    call.kind = kind;
    if (kind == call_kind::task) {
        call.cpus = static_cast<std::uint16_t>(how.cpus);
        const int retries = how.retries < 0 ? default_task_retries : how.retries;
        call.retries_left = static_cast<std::uint8_t>(std::min(retries, 255));
    }
    if (!how.name.empty()) call.extra().name = how.name;
    if (how.deadline != no_deadline) call.extra().limit = how.deadline;
}

SKEIN_INLINE runtime& runtime_of(const counted_ptr<actor_state>& lane) {
    SKEIN_CHECK(lane, "a method is called through an empty actor_handle");
    SKEIN_CHECK(lane->owner != nullptr, "a method is called after the runtime has ended");
    return *lane->owner;
}

} // namespace skein::rt::detail

// ======== skein/rt/detail/runtime.ipp
// The bodies of rt/runtime.hpp: the calls of this process, and the actors it knows. How calls get to
// workers is in runtime_send.ipp, what links bring in runtime_frames.ipp, what they take along in runtime_peers.ipp.


#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

SKEIN_INLINE void no_current_runtime() {
    SKEIN_CHECK(false, "no skein runtime on this thread: call remote functions and actors from "
                       "inside skein::run");
    std::abort();
}

SKEIN_INLINE void incoming_call::refuse(const error& why) const {
    error bad(why.code(), "arguments of " + fn.name + ": " + why.text());
    self.reply_failure(*from, slot, {std::move(bad), nullptr});
}

SKEIN_INLINE void incoming_call::reply_thrown() const { self.reply_thrown(*from, slot, fn); }

} // namespace detail

SKEIN_INLINE runtime::runtime(runtime_options who) : books_(std::make_unique<books>()) {
    books_->name.name = std::move(who.name);
    books_->name.host = std::move(who.host);
    books_->name.pid = who.pid;
    books_->incarnation = who.incarnation != 0 ? who.incarnation : system_random().next();
    books_->anchor = counted_ptr(new detail::runtime_anchor(*this));
    books_->root = counted_ptr(new detail::call_context(books_->anchor));
    (void)registry::instance(); // numbers the functions
}

SKEIN_INLINE runtime::~runtime() {
    SKEIN_CHECK(
        books_->links.empty() && books_->upstream == nullptr && books_->calls.size() == 0,
        "a runtime is destroyed while it serves {} links and runs {} calls; co_await close() and "
        "the serving tasks first",
        books_->links.size(), books_->calls.size());
    give_up(error(errc::closed, "the runtime has ended"));
    for (auto& [id, lane] : books_->lanes) lane->owner = nullptr;
    books_->anchor->self = nullptr;
    if (current_ == this) current_ = nullptr;
}

SKEIN_INLINE std::size_t runtime::workers() const noexcept {
    return static_cast<std::size_t>(
        std::count_if(books_->links.begin(), books_->links.end(), [](auto& l) { return l->up; }));
}

SKEIN_INLINE void runtime::on_first_call(unique_function<void()> start) {
    books_->start_workers = std::move(start);
}
SKEIN_INLINE void runtime::expect_workers(std::size_t n) {
    books_->expected = n;
    pump();
}
SKEIN_INLINE const detail::process_name& runtime::name() const noexcept { return books_->name; }
SKEIN_INLINE const runtime_stats& runtime::stats() const noexcept { return books_->stats; }
SKEIN_INLINE std::size_t runtime::pending() const noexcept {
    return books_->stats.submitted - books_->stats.done;
}
SKEIN_INLINE std::size_t runtime::actors() const noexcept { return books_->boxes.size(); }
SKEIN_INLINE std::size_t runtime::running() const noexcept { return books_->calls.size(); }
SKEIN_INLINE bool runtime::is_driver() const noexcept { return books_->upstream == nullptr; }
SKEIN_INLINE std::uint64_t runtime::incarnation() const noexcept { return books_->incarnation; }
SKEIN_INLINE actor_id runtime::new_actor_id() noexcept {
    return actor_id({books_->incarnation, ++books_->last_actor});
}
SKEIN_INLINE counted_ptr<task_context> runtime::root_context() const noexcept {
    return books_->root;
}
SKEIN_INLINE void runtime::insert_actor(actor_id id, std::shared_ptr<detail::actor_box> box) {
    books_->boxes.insert_or_assign(id, std::move(box));
}
SKEIN_INLINE void runtime::count_outcome(bool failed) noexcept {
    ++books_->stats.done;
    books_->stats.failed += failed;
}
SKEIN_INLINE void runtime::refuse(detail::call_base& call, error why) {
    call.fail({std::move(why), nullptr});
}

// ---- calls of this process -------------------------------------------------------------------

/// False: its deadline is over before it begins, and it has failed with that.
SKEIN_INLINE bool runtime::prepare(detail::call_base& call) {
    call.owner = this;
    call.number = ++books_->last_call;
    ++books_->stats.submitted;
    adopt_child(call);
    if (!call.rare || call.rare->limit == no_deadline) return true;
    if (call.rare->limit <= duration::zero()) {
        const char* whose =
            call.rare->is_inherited ? "the deadline of the call that made it" : "its deadline";
        refuse(call,
               error(errc::timeout, fmt::format("{} did not run: {} was over when it was called",
                                                call.name(), whose)));
        return false;
    }
    call.rare->deadline.emplace(call);
    auto& here = loop::current();
    call.rare->until = deadline_after(here.exact_now(), call.rare->limit);
    here.set_timer(*call.rare->deadline, call.rare->until);
    return true;
}

/// A call made by a call: is cancelled with it, and ends no later.
SKEIN_INLINE void runtime::adopt_child(detail::call_base& call) {
    auto* const parent = detail::call_context::current();
    if (parent == nullptr || !parent->is_call() || parent->where() != this) return;
    call.parent = counted_ptr(parent);
    parent->add_child(call);
    if (parent->who.until == time_point::max()) return;
    const duration left = parent->who.until - loop::current().exact_now();
    auto& rare = call.extra();
    if (rare.limit != no_deadline && rare.limit <= left) return;
    rare.limit = left;
    rare.is_inherited = true;
}

namespace detail {

SKEIN_INLINE void encode_head(wire::writer& to, const call_base& call, std::uint64_t incarnation,
                              bool is_worker) {
    call_head head;
    head.function = call.fn != nullptr ? call.fn->index : 0;
    head.kind = call.kind;
    head.retries = call.retries_left;
    head.cpus = call.cpus;
    head.target = call.target;
    auto& who = head.who;
    who.id = who.trace = call_id({incarnation, call.number});
    if (call.parent) {
        who.trace = call.parent->who.trace;
        who.parent = call.parent->who.id;
    }
    const bool ends = call.rare && call.rare->deadline;
    if (ends) who.until = call.rare->until;
    head.is_told = is_worker || call.parent || ends;
    head.encode(to, ends ? loop::current().exact_now() : time_point{});
}

SKEIN_INLINE void call_context::cancel_children() {
    std::vector<counted_ptr<call_base>> all;
    while (!children_.empty()) {
        auto& child = children_.front();
        child.unlink();
        all.emplace_back(&child);
    }
    for (const auto& child : all) cancel_call(*child);
}

} // namespace detail

/// Appends head and arguments; false: a codec threw, and the call has failed with that.
SKEIN_INLINE bool runtime::encode_call(wire::writer& to, detail::call_base& call,
                                       detail::encoder encode) {
    struct encoding_guard {
        detail::call_base* before = encoding_;
        ~encoding_guard() { encoding_ = before; }
    };
    try {
        const encoding_guard guard;
        encoding_ = &call;
        detail::encode_head(to, call, books_->incarnation, books_->upstream != nullptr);
        encode(to);
        return true;
    } catch (...) {
        const error why = to_error(std::current_exception());
        error told(why.code(), fmt::format("{} did not run: its arguments cannot be encoded: {}",
                                           call.name(), why.text()));
        call.fail({std::move(told), nullptr});
        return false;
    }
}

SKEIN_INLINE void runtime::submit(counted_ptr<detail::call_base> call, detail::encoder encode) {
    if (!prepare(*call)) return;
    if (call->kind == detail::call_kind::method) {
        // The common case: nothing waits, the worker is there, nothing has to be kept.
        auto& lane = *call->lane;
        if (lane.first == lane.waiting.size() && lane.on != nullptr && lane.on->wire->is_open() &&
            !books_->closing) [[likely]] {
            books_->scratch.clear();
            if (!encode_call(books_->scratch, *call, encode)) return;
            auto& raw = *call;
            raw.slot = take_slot(std::move(call));
            if (books_->scratch.size() < limit::inline_bytes) [[likely]]
                return transmit(*lane.on, raw, books_->scratch.bytes(), nullptr);
            auto body = std::move(books_->scratch).take(); // its memory goes with it
            return transmit(*lane.on, raw, body, &body);
        }
    }
    wire::writer body;
    if (!encode_call(body, *call, encode)) return;
    call->body = std::move(body).take();
    call->state = detail::phase::queued;
    place(std::move(call));
}

SKEIN_INLINE void runtime::submit_deferred(const counted_ptr<detail::call_base>& call,
                                           std::size_t pending,
                                           std::unique_ptr<detail::deferred_arguments> arguments) {
    call->extra().pending = pending;
    call->extra().arguments = std::move(arguments);
    if (!prepare(*call)) return;
    if (call->kind == detail::call_kind::method) call->lane->waiting.push_back(call);
    // Held by the refs it waits for.
}

SKEIN_INLINE void runtime::argument_ready(detail::call_base& call) {
    if (--call.rare->pending != 0 || call.is_done()) return;
    books_->ready.emplace_back(&call);
    if (std::exchange(books_->settling, true)) return; // a long chain must not become a deep stack
    for (std::size_t i = 0; i < books_->ready.size(); ++i) {
        const auto next = books_->ready[i];
        if (!next->is_done()) settle_ready(next);
    }
    books_->ready.clear();
    books_->settling = false;
}

/// All refs among a call's arguments have an outcome: it is sent, or fails with one of them.
SKEIN_INLINE void runtime::settle_ready(const counted_ptr<detail::call_base>& call) {
    const auto lane = call->lane;
    if (const auto* bad = call->rare->arguments->failed()) {
        // A chain of failures names its ends, not all that lies between.
        constexpr std::string_view because = "did not run: its argument failed: ";
        std::string_view root = bad->what.text();
        if (const auto at = root.rfind(because); at != root.npos)
            root.remove_prefix(at + because.size());
        error why(bad->what.code(), fmt::format("{} {}{}", call->name(), because, root));
        if (!bad->what.where().empty()) why.with_where(bad->what.where());
        if (!bad->what.cause().empty()) why.with_cause(bad->what.cause());
        if (!bad->what.hint().empty()) why.with_hint(bad->what.hint());
        call->fail({std::move(why), bad->from});
        if (lane) drain(*lane);
        return;
    }
    wire::writer body;
    auto& arguments = *call->rare->arguments;
    if (!encode_call(body, *call, [&](wire::writer& to) { arguments.encode(to); })) {
        if (lane) drain(*lane);
        return;
    }
    call->rare->arguments.reset();
    call->body = std::move(body).take();
    call->state = detail::phase::queued;
    if (call->kind == detail::call_kind::method) {
        drain(*call->lane);
    } else {
        place(call);
    }
}

/// A call with its arguments encoded: to its worker, its lane, or the queue.
SKEIN_INLINE void runtime::place(counted_ptr<detail::call_base> call) {
    if (books_->closing)
        return refuse(*call, error(errc::closed, call->name() + " was called while the runtime "
                                                                "is shutting down"));
    if (call->kind == detail::call_kind::method && call->lane) {
        const auto lane = call->lane;
        lane->waiting.push_back(std::move(call));
        return drain(*lane);
    }
    if (books_->upstream != nullptr) return send(*books_->upstream, std::move(call));
    if (call->kind == detail::call_kind::method) { // passed on for a worker
        const auto found = books_->actors.find(call->target);
        if (found == books_->actors.end() || found->second.where == nullptr)
            return refuse(*call,
                          error(errc::not_found, fmt::format("actor {} is gone", call->target))
                              .with_hint("the last handle in the process that made it was "
                                         "dropped, or its worker died"));
        return send(*found->second.where, std::move(call));
    }
    if (books_->given_up) return refuse(*call, *books_->given_up);
    if (books_->start_workers) {
        const task_context::use none(nullptr); // they do not belong to the call that came first
        std::exchange(books_->start_workers, {})();
    }
    if (call->nested || call->cpus == 0) { // must not wait behind those that wait for a free core
        bool possible = true;
        if (auto* where = pick(*call, possible)) return send(*where, std::move(call));
    }
    auto& line = call->kind == detail::call_kind::create ? books_->creations : books_->queue;
    line.push_back(std::move(call));
    pump();
}

/// Sends what is complete at the front of an actor's line.
SKEIN_INLINE void runtime::drain(detail::actor_state& lane) {
    const counted_ptr<detail::actor_state> hold(&lane);
    while (lane.first != lane.waiting.size()) {
        auto& front = lane.waiting[lane.first];
        if (front->state == detail::phase::preparing) break;
        auto call = std::exchange(front, {});
        ++lane.first;
        if (call->is_done()) continue;
        if (lane.lost) {
            call->fail(
                {error(errc::worker_lost, call->name() + " did not run: " + lane.lost->what.text()),
                 nullptr});
        } else if (lane.on == nullptr) {
            refuse(*call, error(errc::not_found, fmt::format("actor {} is gone", lane.id)));
        } else {
            send(*lane.on, std::move(call));
        }
    }
    if (lane.first == lane.waiting.size()) {
        lane.waiting.clear();
        lane.first = 0;
    }
}

SKEIN_INLINE void runtime::cancel(detail::call_base& call) noexcept {
    const counted_ptr<detail::call_base> hold(&call);
    const auto lane = call.lane;
    const bool is_free = take_back(call);
    if (!is_free && (call.state == detail::phase::sent || call.state == detail::phase::started)) {
        if (std::exchange(call.extra().cancel_requested, true)) return;
        if (call.on != nullptr && call.on->wire->is_open())
            call.on->wire->send(detail::message_cancel, 0, call.slot.value(), {}, {});
        return;
    }
    if (call.state == detail::phase::queued && call.on != nullptr) {
        call.extra().cancel_requested = true; // for lose(), which settles its link
        return;
    }
    call.fail({error(errc::cancelled,
                     fmt::format("{} was cancelled; it {}", call.name(), call.progress())),
               nullptr});
    if (lane) drain(*lane);
    if (is_free) pump(); // no answer comes that would do so
}

SKEIN_INLINE void runtime::deadline_passed(detail::call_base& call) {
    const counted_ptr<detail::call_base> hold(&call);
    const auto lane = call.lane;
    const bool is_free = take_back(call);
    const bool sent = !is_free && call.on != nullptr && call.on->wire->is_open() &&
                      call.state != detail::phase::queued;
    // The slot stays taken until the worker answers: the late answer finds a call that is done.
    if (sent) call.on->wire->send(detail::message_cancel, 0, call.slot.value(), {}, {});
    call.fail(
        {error(errc::timeout,
               fmt::format("{} gave no answer within {:.3g} s{}; it {}", call.name(),
                           to_seconds(call.rare->limit),
                           call.rare->is_inherited ? ", what the call that made it had left" : "",
                           call.progress())),
         nullptr});
    if (lane) drain(*lane);
    if (is_free) pump();
}

SKEIN_INLINE void runtime::give_up(error why) {
    books_->given_up = why;
    books_->start_workers = {};
    for (auto* line : {&books_->creations, &books_->queue})
        for (auto& call : std::exchange(*line, {}))
            if (!call->is_done()) refuse(*call, why);
}

// ---- actors ------------------------------------------------------------------------------------

SKEIN_INLINE counted_ptr<detail::actor_state> runtime::actor_lane(actor_id id) {
    auto& lane = books_->lanes[id];
    if (lane != nullptr) return counted_ptr<detail::actor_state>(lane);
    lane = new detail::actor_state;
    lane->owner = this;
    lane->id = id;
    if (books_->upstream != nullptr) {
        lane->on = books_->upstream;
    } else if (const auto found = books_->actors.find(id); found != books_->actors.end()) {
        lane->on = found->second.where;
    }
    return counted_ptr<detail::actor_state>(lane);
}

SKEIN_INLINE void runtime::drop_actor(detail::actor_state& lane) noexcept {
    books_->lanes.erase(lane.id);
    if (!lane.owned || lane.on == nullptr) return;
    if (books_->upstream == nullptr) {
        --lane.on->actors;
        books_->actors.erase(lane.id);
    }
    send_drop(*lane.on, lane.id);
}

SKEIN_INLINE void runtime::send_drop(peer& to, actor_id id) {
    if (!to.wire->is_open()) return;
    std::array<std::byte, 16> body;
    store_le(body.data(), id.value().incarnation);
    store_le(body.data() + 8, id.value().number);
    to.wire->send(detail::message_drop, 0, 0, body, {});
}

/// The actor is lost: the calls that wait in its line did not run. Some of their arguments are still
/// to come; that does not matter any more.
SKEIN_INLINE void runtime::fail_lane(detail::actor_state& lane) {
    const counted_ptr<detail::actor_state> hold(&lane);
    for (std::size_t i = lane.first; i < lane.waiting.size(); ++i) {
        const auto call = lane.waiting[i];
        if (call && !call->is_done())
            call->fail(
                {error(errc::worker_lost, call->name() + " did not run: " + lane.lost->what.text()),
                 nullptr});
    }
    drain(lane);
}

} // namespace skein::rt

// ======== skein/rt/detail/runtime_frames.ipp
// Part of the bodies of rt/runtime.hpp: the frames that come over links, and the calls that run here.


#include <coroutine>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// A call of a worker that the driver passes on: its outcome goes back as a reply.
class forwarded_call : public call_base {
public:
    forwarded_call(runtime& self, std::shared_ptr<peer> origin, slot_id origin_id)
        : self_(self), origin_(std::move(origin)), origin_id_(origin_id) {}

protected:
    result<void> take_value(byte_span bytes) override {
        if (!origin_->up) return {};
        self_.reply(*origin_, origin_id_, [&](wire::writer& w) { w.raw(bytes); });
        return {};
    }
    void take_failure(const failure& why) override {
        if (origin_->up) self_.reply_failure(*origin_, origin_id_, why);
    }
    void on_finished() override { origin_->forwarded.erase(origin_id_); }

private:
    runtime& self_;
    std::shared_ptr<peer> origin_;
    slot_id origin_id_;
};

} // namespace detail

// A peer has shown that it knows the token, no more: what it says is compared with what it was asked.
// The exceptions that are thrown here end its link.

SKEIN_INLINE void runtime::on_frame(const std::shared_ptr<peer>& from, const net::frame_view& f) {
    switch (f.kind) {
    case detail::message_reply: return on_reply(*from, f);
    case detail::message_call:
        return books_->upstream == nullptr ? forward(*from, f) : arrived(from, f);
    case detail::message_started:
        if (auto* call = call_at(*from, slot_id(f.id));
            call != nullptr && call->state == detail::phase::sent)
            call->state = detail::phase::started;
        return;
    case detail::message_cancel: return on_cancel(*from, slot_id(f.id));
    case detail::message_drop:
        return books_->upstream == nullptr ? on_drop(*from, f.body) : arrived(from, f);
    default:
        throw error(errc::malformed,
                    fmt::format("frame of unknown kind {} from {}", f.kind, from->who));
    }
}

/// The call of an id, which must have been sent over this link; nullptr if it is not known any more.
SKEIN_INLINE detail::call_base* runtime::call_at(const peer& from, slot_id id) {
    const auto index = static_cast<std::uint32_t>(id.value());
    if (index >= books_->slots.size() || books_->slots[index].generation != id.value() >> 32)
        return nullptr;
    auto* call = books_->slots[index].call.get();
    if (call != nullptr && call->on != &from)
        throw error(errc::malformed, fmt::format("{} answers for {}, which was not sent to it",
                                                 from.who, call->name()));
    return call;
}

SKEIN_INLINE void runtime::on_reply(peer& from, const net::frame_view& f) {
    if (f.flags != detail::reply_ok && f.flags != detail::reply_failed)
        throw error(errc::malformed,
                    fmt::format("a reply that is neither value nor failure from {}", from.who));
    if (call_at(from, slot_id(f.id)) == nullptr) return;
    const auto call = free_slot(slot_id(f.id));
    account(from, *call);
    if (call->kind == detail::call_kind::create && books_->upstream == nullptr)
        settle_create(from, *call, f.flags);
    if (!call->is_done()) {
        if (f.flags == detail::reply_ok) {
            call->finish_with_bytes(f.body);
        } else {
            call->fail(detail::decode_failure(f.body));
        }
    }
    if (!books_->queue.empty() || !books_->creations.empty()) pump();
    if (from.busy == 0 && books_->upstream == nullptr && books_->links.size() > 1) feed(from);
}

SKEIN_INLINE void runtime::on_cancel(peer& from, slot_id id) {
    if (const auto found = from.running.find(id); found != from.running.end()) {
        found->second.stop.request();
        found->second.context->cancel_children();
    } else if (books_->has_backlog) {
        books_->unwanted.insert(id);
    }
    if (const auto found = from.forwarded.find(id); found != from.forwarded.end())
        cancel(*found->second);
}

namespace detail {

SKEIN_INLINE actor_id dropped_actor(byte_span body, const std::string& who) {
    wire::reader in(body);
    unique_number id;
    if (!in.fixed(id.incarnation) || !in.fixed(id.number) || !in.finish())
        throw error(errc::malformed, fmt::format("a drop that cannot be read from {}", who));
    return actor_id(id);
}

} // namespace detail

/// Driver: a worker has let go of the last handle to an actor that it made.
SKEIN_INLINE void runtime::on_drop(peer& from, byte_span body) {
    const auto id = detail::dropped_actor(body, from.who);
    const auto found = books_->actors.find(id);
    if (found == books_->actors.end() || found->second.owner != from.number) return;
    auto* where = found->second.where;
    books_->actors.erase(found);
    if (where == nullptr) return;
    --where->actors;
    send_drop(*where, id);
}

/// Driver: an actor was made, or its constructor threw.
SKEIN_INLINE void runtime::settle_create(peer& from, const detail::call_base& call,
                                         std::uint16_t outcome) {
    const auto known = books_->actors.find(call.target); // made by a worker that is still there
    const auto lane = books_->lanes.find(call.target);   // made by this process
    const bool wanted = call.nested ? known != books_->actors.end()
                                    : lane != books_->lanes.end() && !call.is_done();
    if (outcome == detail::reply_ok && wanted) {
        auto& entry = books_->actors[call.target];
        entry.where = &from;
        entry.type = call.fn->actor;
        if (lane != books_->lanes.end()) lane->second->on = &from;
        return;
    }
    if (known != books_->actors.end()) books_->actors.erase(known);
    --from.actors;
    if (outcome == detail::reply_ok) send_drop(from, call.target);
}

namespace detail {

/// The function that a call names; its head must fit it.
SKEIN_INLINE const function_record& read_head(wire::reader& in, call_head& head, const peer& from,
                                              time_point came) {
    const auto& who = from.who;
    const bool good = head.decode(in, from.incarnation, came);
    const auto* fn = good ? registry::instance().at(head.function) : nullptr;
    if (fn == nullptr)
        throw error(errc::malformed, fmt::format("a call that cannot be read from {}", who));
    const auto wanted = fn->is_constructor     ? call_kind::create
                        : fn->actor != nullptr ? call_kind::method
                                               : call_kind::task;
    if (head.kind != wanted)
        throw error(errc::malformed,
                    fmt::format("{} sends a call of {} that is none of its kind", who, fn->name));
    return *fn;
}

SKEIN_INLINE error wrong_actor(const std::string& who, const function_record& fn, actor_id actor,
                               const std::type_info& type) {
    return error(errc::malformed, fmt::format("{} calls {} of actor {}, which is a {}", who,
                                              fn.name, actor, readable_name(type.name())));
}

} // namespace detail

/// Driver: a call of a worker goes on to where it belongs.
SKEIN_INLINE void runtime::forward(peer& from, const net::frame_view& f) {
    wire::reader in(f.body);
    detail::call_head head;
    const auto& fn = detail::read_head(in, head, from, loop::current().now());
    if (head.who.id.value().incarnation != from.incarnation)
        throw error(errc::malformed, fmt::format("{} sends a call in another's name", from.who));
    if (head.kind == detail::call_kind::method) {
        const auto found = books_->actors.find(head.target);
        if (found != books_->actors.end() && found->second.type != nullptr &&
            *found->second.type != *fn.actor)
            throw detail::wrong_actor(from.who, fn, head.target, *found->second.type);
    }
    if (from.forwarded.contains(slot_id(f.id)))
        throw error(errc::malformed, fmt::format("a second call {} from {}", f.id, from.who));
    std::shared_ptr<peer> origin;
    for (const auto& l : books_->links)
        if (l.get() == &from) origin = l;
    if (!origin) return;
    counted_ptr<detail::call_base> call(new detail::forwarded_call(*this, origin, slot_id(f.id)));
    call->fn = &fn;
    call->kind = head.kind;
    call->cpus = head.cpus;
    call->retries_left = head.kind == detail::call_kind::task ? head.retries : 0;
    call->target = head.target;
    call->nested = true;
    call->body = f.take_body();
    if (head.who.until != time_point::max()) call->extra().until = head.who.until;
    if (head.kind == detail::call_kind::create) {
        const bool is_new = head.target.value().incarnation == from.incarnation &&
                            !books_->actors.contains(head.target);
        if (!is_new)
            throw error(
                errc::malformed,
                fmt::format("{} makes an actor under a number that is not its own", from.who));
        books_->actors[call->target] = {nullptr, from.number, fn.actor};
    }
    from.forwarded[slot_id(f.id)] = call.get();
    if (!prepare(*call)) return;
    call->state = detail::phase::queued;
    place(std::move(call));
}

SKEIN_INLINE void runtime::reply(peer& to, slot_id id, detail::encoder encode) {
    if (!to.wire->is_open()) return;
    books_->scratch.clear();
    encode(books_->scratch);
    send_scratch(to, detail::reply_ok, id);
}

SKEIN_INLINE void runtime::reply_failure(peer& to, slot_id id, const failure& why) {
    if (!to.wire->is_open()) return;
    books_->scratch.clear();
    detail::encode_failure(books_->scratch, why);
    send_scratch(to, detail::reply_failed, id);
}

/// A reply. The memory of a large one goes with it, so that it is given back.
SKEIN_INLINE void runtime::send_scratch(peer& to, std::uint16_t outcome, slot_id id) {
    if (books_->scratch.size() < limit::inline_bytes)
        return to.wire->send(detail::message_reply, outcome, id.value(), books_->scratch.bytes(),
                             {});
    net::frame f;
    f.kind = detail::message_reply;
    f.flags = outcome;
    f.id = id.value();
    f.body = std::move(books_->scratch).take();
    to.wire->send(std::move(f));
}

SKEIN_INLINE void runtime::reply_thrown(peer& to, slot_id id, const function_record& fn) {
    reply_failure(to, id, detail::failure_of(std::current_exception(), fn, books_->name));
}

/// Worker: a call or drop has come. Calls run in order, here and now, until they have taken so long that
/// their replies should leave and a cancellation should be heard: the rest waits for the next turn.
SKEIN_INLINE void runtime::arrived(const std::shared_ptr<peer>& from, const net::frame_view& f) {
    const bool is_drop = f.kind == detail::message_drop;
    if (books_->has_backlog) {
        books_->backlog_bytes += f.body.size();
        books_->backlog.push_back(
            {from, slot_id(f.id), to_buffer(f.body), is_drop, loop::current().now()});
        if (books_->backlog_bytes > limit::backlog_bytes &&
            !std::exchange(books_->backlog_full, true))
            from->wire->pause_reading();
        return;
    }
    if (is_drop) {
        books_->boxes.erase(detail::dropped_actor(f.body, from->who));
        return;
    }
    auto& here = loop::current();
    if (!books_->in_turn.is_linked()) { // the first one of this turn of the loop
        books_->turn_began = here.coarse_now();
        here.at_turn_end(books_->in_turn);
    }
    execute(from, slot_id(f.id), f.body, nullptr, here.now());
    if (here.coarse_now() - books_->turn_began < limit::call_turn || books_->closing) return;
    books_->has_backlog = true;
    books_->calls.spawn(run_backlog());
}

namespace detail {

/// Resumes in the next turn of the loop, when replies have left and what has come was read.
struct next_turn : turn_hook {
    next_turn() noexcept
        : turn_hook(
              [](turn_hook& h) { loop::current().post(static_cast<next_turn&>(h).waiting); }) {}
    static bool await_ready() noexcept { return false; }
    void await_suspend(std::coroutine_handle<> h) noexcept {
        waiting = h;
        loop::current().at_turn_end(*this);
    }
    static void await_resume() noexcept {}
    std::coroutine_handle<> waiting;
};

} // namespace detail

SKEIN_INLINE task<void> runtime::run_backlog() {
    auto& waiting = books_->backlog;
    do {
        detail::next_turn next;
        co_await next;
        co_await yield(); // behind the readers that this turn has woken
        auto& here = loop::current();
        const auto began = here.coarse_now();
        while (!waiting.empty() && here.coarse_now() - began < limit::call_turn) {
            auto one = std::move(waiting.front());
            waiting.pop_front();
            books_->backlog_bytes -= one.body.size();
            if (books_->closing) continue; // its driver has gone
            execute_waiting(one);
        }
        if (books_->backlog_bytes < limit::backlog_bytes / 2 &&
            std::exchange(books_->backlog_full, false) && books_->upstream != nullptr)
            books_->upstream->wire->resume_reading();
    } while (!waiting.empty());
    books_->has_backlog = false;
    books_->unwanted.clear();
}

/// A call whose turn has come; it may have been cancelled meanwhile.
SKEIN_INLINE void runtime::execute_waiting(const arrival& one) {
    try {
        if (one.is_drop) {
            books_->boxes.erase(detail::dropped_actor(one.body, one.from->who));
            return;
        }
        if (books_->unwanted.erase(one.slot) == 0)
            return execute(one.from, one.slot, one.body, nullptr, one.came);
        wire::reader in(one.body);
        detail::call_head head;
        const auto& fn = detail::read_head(in, head, *one.from, one.came);
        if (!one.from->page.begin()) return;
        error why(errc::cancelled, fn.name + " was cancelled; it did not run");
        reply_failure(*one.from, one.slot, {std::move(why), nullptr});
    } catch (const error& e) { // no call: as in the handler of a link
        one.from->wire->abort(e);
    }
}

/// Worker: runs one call. box: the actor, if the call has waited for its turn. A plain call that has
/// just arrived lets coroutine calls of its actor go first that have not started yet; coroutine calls
/// start from the run queue, so in order.
SKEIN_INLINE void runtime::execute(const std::shared_ptr<peer>& from, slot_id id, byte_span body,
                                   std::shared_ptr<detail::actor_box> box, time_point came) {
    wire::reader in(body);
    detail::call_head head;
    const auto& fn = detail::read_head(in, head, *from, came);
    if (!box && !from->page.begin()) return; // its driver has taken it back
    if (head.kind == detail::call_kind::method && !box) {
        const auto found = books_->boxes.find(head.target);
        if (found == books_->boxes.end()) {
            const error gone =
                error(errc::not_found, fmt::format("actor {} is gone", head.target))
                    .with_hint("the last handle in the process that made it was dropped");
            return reply_failure(*from, id, {gone, nullptr});
        }
        box = found->second;
        if (box->type != *fn.actor)
            throw detail::wrong_actor(from->who, fn, head.target, box->type);
        if (box->not_started > 0 && !fn.is_coroutine) {
            ++box->not_started;
            books_->calls.spawn(execute_later(from, id, to_buffer(body), std::move(box), came));
            return;
        }
    }
    ++books_->stats.executed;
    detail::incoming_call call{*this, from, id, fn, head.target, in, std::move(box)};
    struct executing_guard {
        runtime* before = executing_;
        ~executing_guard() { executing_ = before; }
    } const guard;
    executing_ = this;
    const task_context::use under(&context_for(head, fn));
    fn.invoke(call);
}

/// What a call that runs now belongs to. That of the last one serves again if nothing has kept it.
SKEIN_INLINE detail::call_context& runtime::context_for(const detail::call_head& head,
                                                        const function_record& fn) {
    auto& spare = books_->spare;
    if (!spare || spare->uses() > 1) spare = counted_ptr(new detail::call_context(books_->anchor));
    spare->who = head.who;
    spare->fn = &fn;
    spare->actor = head.target;
    return *spare;
}

SKEIN_INLINE task<void> runtime::execute_later(std::shared_ptr<peer> from, slot_id id,
                                               byte_buffer body,
                                               std::shared_ptr<detail::actor_box> box,
                                               time_point came) {
    --box->not_started;
    execute(from, id, body, std::move(box), came);
    co_return;
}

SKEIN_INLINE void runtime::start(detail::incoming_call& call, task<void> work) {
    auto& running = call.from->running[call.slot];
    running.context = books_->spare;
    auto guarded = with_cancel(running.stop.token(), std::move(work));
    books_->calls.spawn(run_call(call.from, call.slot, std::move(guarded)));
    books_->fresh.push_back(call.slot);
    if (books_->fresh.size() == 1) books_->calls.spawn(tell_started(call.from));
}

SKEIN_INLINE task<void> runtime::run_call(std::shared_ptr<peer> from, slot_id id, task<void> work) {
    try {
        co_await work;
    } catch (...) { // it could not even say so: the others that run here must not end for that
        from->wire->abort(to_error(std::current_exception()));
    }
    from->running.erase(id);
}

/// Runs after the first steps of the calls that have just started: those that are not done by then
/// have suspended, and their submitter is told.
SKEIN_INLINE task<void> runtime::tell_started(std::shared_ptr<peer> to) {
    co_await yield();
    for (const auto id : std::exchange(books_->fresh, {})) {
        const auto found = to->running.find(id);
        if (found == to->running.end() || found->second.told || !to->wire->is_open()) continue;
        found->second.told = true;
        to->wire->send(detail::message_started, 0, id.value(), {}, {});
    }
    co_return;
}

} // namespace skein::rt

// ======== skein/rt/detail/runtime_peers.ipp
// Part of the bodies of rt/runtime.hpp: links to other processes, and what one takes along when it ends.


#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE std::shared_ptr<peer> runtime::attach(std::shared_ptr<net::connection> wire,
                                                   detail::claims page) {
    auto l = std::make_shared<peer>();
    l->wire = std::move(wire);
    l->page = std::move(page);
    l->number = peer_id(++books_->last_link);
    const auto& who = l->wire->peer();
    l->who = fmt::format("{} (pid {} at {})", who.name, who.pid, who.host);
    if (const auto hello = wire::decode<detail::worker_hello>(who.extra)) {
        l->capacity = std::max<std::uint32_t>(1, hello->cpus);
        l->incarnation = hello->incarnation;
        if (!hello->shares_memory && books_->upstream == nullptr) l->page = {};
    }
    return l;
}

/// Frames that have come already are handled inside this call.
SKEIN_INLINE void runtime::listen_to(const std::shared_ptr<peer>& l) {
    const std::weak_ptr<peer> weak = l;
    l->wire->set_closed_handler([weak](const error* why) {
        if (const auto here = weak.lock()) {
            here->orderly = why == nullptr;
            if (why != nullptr) here->why = *why;
            here->up = false;
            here->ended.set();
        }
    });
    l->wire->set_handler([this, weak](const net::frame_view& f) {
        if (const auto here = weak.lock()) on_frame(here, f);
    });
}

/// False: its calls and actors would be taken for those of another process.
SKEIN_INLINE bool runtime::has_own_incarnation(const peer& newcomer) const {
    const auto its = newcomer.incarnation;
    if (its == 0 || its == books_->incarnation) return false;
    return std::none_of(books_->links.begin(), books_->links.end(),
                        [&](const auto& l) { return l->incarnation == its; });
}

SKEIN_INLINE task<void> runtime::wait_end(std::shared_ptr<peer> l) {
    try {
        co_await l->ended.wait();
    } catch (const error&) { // cancelled
        l->wire->abort(cancelled_error());
        l->up = false;
    }
}

SKEIN_INLINE task<void> runtime::serve_worker(std::shared_ptr<net::connection> wire, obituary after,
                                              detail::claims page) {
    SKEIN_CHECK(books_->upstream == nullptr, "a worker cannot have workers of its own");
    auto l = attach(std::move(wire), std::move(page));
    if (!has_own_incarnation(*l)) {
        l->wire->abort(
            error(errc::malformed, l->who + " does not say which process it is, or says that it is "
                                            "another one"));
        co_return;
    }
    books_->links.push_back(l);
    listen_to(l);
    pump();
    feed(*l);
    auto ended = wait_end(l);
    co_await ended;

    std::string how = l->orderly ? "it left" : l->why.what();
    try {
        if (after) {
            auto asked = after(*l);
            auto sure = shield(std::move(asked));
            auto said = co_await sure;
            if (!said.empty()) how = std::move(said);
        }
    } catch (...) { // its calls are settled all the same
        how +=
            fmt::format(" (its end was not seen: {})", to_error(std::current_exception()).what());
    }
    std::erase(books_->links, l);
    lose(*l, how);
    pump();
}

SKEIN_INLINE task<void> runtime::serve_driver(std::shared_ptr<net::connection> wire,
                                              detail::claims page) {
    SKEIN_CHECK(books_->links.empty() && books_->upstream == nullptr, "a worker has one driver");
    auto l = attach(std::move(wire), std::move(page));
    books_->upstream = l.get();
    listen_to(l);
    auto ended = wait_end(l);
    co_await ended;

    books_->closing = true;
    books_->calls.cancel();
    try {
        auto joined = books_->calls.join();
        auto sure = shield(std::move(joined));
        co_await sure;
    } catch (...) { // a call's own errors were told to the driver
    }
    lose(*l, "the driver has gone");
    books_->boxes.clear();
    books_->upstream = nullptr;
}

SKEIN_INLINE task<void> runtime::close() {
    books_->closing = true;
    const error why(errc::closed, "the program ended before the call was done");
    books_->start_workers = {};
    for (auto* line : {&books_->creations, &books_->queue})
        for (auto& call : std::exchange(*line, {}))
            if (!call->is_done()) refuse(*call, why);
    for (std::size_t i = 0; i < books_->slots.size(); ++i) {
        const auto call = books_->slots[i].call;
        if (call && !call->is_done()) call->fail({why, nullptr});
    }
    scope goodbyes;
    auto open = books_->links;
    for (const auto& l : open) goodbyes.spawn(l->wire->close());
    auto joined = goodbyes.join();
    auto sure = shield(std::move(joined));
    co_await sure;
}

namespace detail {

/// What a worker took along, to be told in the error of each call among it.
class loss_report {
public:
    static constexpr const char* runs_again = "runs again";

    void add(const char* state, std::string name) {
        ++lost_[{state, std::move(name)}];
        ++total_;
    }
    /// "; lost with it: f(int) x2 (may have run), g() (did not run)": all but one call of that name.
    [[nodiscard]] const std::string& others(const char* state, const std::string& name) {
        constexpr std::size_t shown = 8;
        const key self(state, name);
        auto [at, is_new] = told_.try_emplace(self);
        if (!is_new) return at->second;
        std::size_t listed = 0, left_out = total_ - 1;
        for (const auto& [other, all] : lost_) {
            const std::size_t n = all - (other == self ? 1 : 0);
            if (n == 0) continue;
            if (listed == shown) break; // of thousands, each would look at all others
            left_out -= n;
            at->second +=
                fmt::format("{}{}{} ({})", listed++ == 0 ? "; lost with it: " : ", ", other.second,
                            n == 1 ? "" : fmt::format(" x{}", n), other.first);
        }
        if (left_out > 0) at->second += fmt::format(", and {} more", left_out);
        return at->second;
    }

private:
    using key = std::pair<std::string_view, std::string>; // how far it got, its name
    std::map<key, std::size_t> lost_;
    std::size_t total_ = 0;
    std::map<key, std::string> told_;
};

/// Its cancellation was on the way to the worker that is lost.
SKEIN_INLINE bool is_unwanted(const call_base& call) noexcept {
    return call.rare && call.rare->cancel_requested;
}

} // namespace detail

/// The calls that a broken link took along.
struct runtime::losses {
    std::vector<counted_ptr<detail::call_base>> again, dead;
    counted_ptr<detail::call_base> suspect; ///< of `again`: it ran when the worker died
    detail::loss_report report;
    std::string summary; ///< "worker-2 (pid 7 at host) was lost: killed by signal 9 (SIGKILL)"
};

/// Settles everything that a broken link took along: calls run again, or fail and say how far they got.
SKEIN_INLINE void runtime::lose(peer& l, const std::string& how) {
    if (books_->upstream == nullptr && !books_->closing) ++books_->stats.workers_lost;
    l.up = false;

    // What ran here for that peer ends; what the driver passed on for it is of no use to anybody.
    for (auto& [id, call] : l.running) {
        call.stop.request();
        call.context->cancel_children();
    }
    std::vector<counted_ptr<detail::call_base>> orphans;
    for (auto& [id, call] : l.forwarded) orphans.emplace_back(call);
    for (const auto& call : orphans)
        if (!call->is_done()) cancel(*call);

    losses lost;
    lost.summary = fmt::format("{} was lost: {}", l.who, how);
    take_lost(l, lost);

    // The actors are gone before any call fails: what that sets free must not go to the dead link.
    std::vector<counted_ptr<detail::actor_state>> gone;
    for (const auto& [id, lane] : books_->lanes)
        if (lane->on == &l) gone.emplace_back(lane);
    std::sort(gone.begin(), gone.end(), [](auto& a, auto& b) { return a->id < b->id; });
    for (const auto& lane : gone) {
        lane->on = nullptr;
        lane->lost = failure{error(errc::worker_lost, lost.summary), nullptr};
    }
    const auto orphaned = forget_actors(l);
    fail_lost(lost);
    for (const auto& lane : gone) fail_lane(*lane);
    for (const auto id : orphaned) drop_orphan(id);
    run_again(lost);
}

/// Takes the calls that were at the link out of their slots.
SKEIN_INLINE void runtime::take_lost(peer& l, losses& into) {
    if (books_->upstream == nullptr) l.page.close(l.sent);
    for (auto& s : books_->slots) {
        if (!s.call || s.call->on != &l) continue;
        auto call = free_slot(s.call->slot);
        if (call->is_done()) continue;
        // What it had not begun did not run, and is no attempt.
        if (call->state == detail::phase::sent && books_->upstream == nullptr &&
            !l.page.has_begun(call->order))
            call->state = detail::phase::queued;
        const bool sent = call->state != detail::phase::queued;
        const bool is_task = call->kind == detail::call_kind::task;
        if (books_->upstream == nullptr && !books_->closing && !detail::is_unwanted(*call) &&
            is_task && (call->retries_left > 0 || (!sent && !call->body.empty()))) {
            if (sent) {
                --call->retries_left;
                ++call->lost_attempts;
                // A coroutine may only have been there: it shares its worker with all others that run.
                if (call->order == l.page.last_begun() && !call->fn->is_coroutine) {
                    into.suspect = call;
                    call->alone = detail::call_base::most_passes;
                }
            }
            into.report.add(detail::loss_report::runs_again, call->name());
            into.again.push_back(std::move(call));
            continue;
        }
        if (call->kind == detail::call_kind::create) books_->actors.erase(call->target);
        if (sent && is_task) ++call->lost_attempts;
        into.report.add(call->progress(), call->name());
        into.dead.push_back(std::move(call));
    }
}

/// Driver: the actors that lived at the link are gone. Gives those elsewhere whose handle it held.
SKEIN_INLINE std::vector<actor_id> runtime::forget_actors(const peer& l) {
    std::vector<actor_id> orphaned;
    if (books_->upstream != nullptr) return orphaned;
    for (const auto& [id, entry] : books_->actors)
        if (entry.where != &l && entry.owner == l.number) orphaned.push_back(id);
    std::erase_if(books_->actors, [&](const auto& item) { return item.second.where == &l; });
    std::sort(orphaned.begin(), orphaned.end());
    return orphaned;
}

SKEIN_INLINE void runtime::drop_orphan(actor_id id) {
    auto* where = books_->actors[id].where;
    books_->actors.erase(id);
    if (where == nullptr) return; // its constructor runs: settle_create() drops it
    --where->actors;
    send_drop(*where, id);
}

SKEIN_INLINE void runtime::fail_lost(losses& lost) {
    for (const auto& call : lost.dead) {
        const auto code = detail::is_unwanted(*call)                       ? errc::cancelled
                          : books_->upstream != nullptr || books_->closing ? errc::closed
                                                                           : errc::worker_lost;
        const auto name = call->name();
        std::string text = fmt::format("{} {}: {}", name, call->progress(), lost.summary);
        if (call->lost_attempts > 1)
            text +=
                fmt::format("; {} attempts were made, each lost its worker", call->lost_attempts);
        text += lost.report.others(call->progress(), name);
        call->fail({error(code, std::move(text)), nullptr});
    }
}

/// Calls that run again go first; before them those that need no free core: a call that holds one may
/// wait for them.
SKEIN_INLINE void runtime::run_again(const losses& lost) {
    const auto needs_no_core = [](const auto& c) { return c->nested || c->cpus == 0; };
    std::vector<counted_ptr<detail::call_base>> urgent, others;
    for (const auto& call : lost.again) {
        ++books_->stats.retried;
        call->on = nullptr;
        call->state = detail::phase::queued;
        if (call == lost.suspect) continue;
        (needs_no_core(call) ? urgent : others).push_back(call);
    }
    auto& queue = books_->queue;
    // What may have killed the worker comes last, so that it takes nobody along the next time.
    if (lost.suspect) {
        if (needs_no_core(lost.suspect))
            urgent.push_back(lost.suspect);
        else
            queue.push_back(lost.suspect);
    }
    const auto behind = std::find_if_not(queue.begin(), queue.end(), needs_no_core);
    queue.insert(behind, others.begin(), others.end());
    queue.insert(queue.begin(), urgent.begin(), urgent.end());
}

} // namespace skein::rt

// ======== skein/rt/detail/runtime_send.ipp
// Part of the bodies of rt/runtime.hpp: which worker a call goes to, and how it gets there.


#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

/// Where a task or a new actor goes now; nullptr: nowhere yet, or (possible = false) never.
SKEIN_INLINE peer* runtime::pick(const detail::call_base& call, bool& possible) {
    peer* best = nullptr;
    std::uint32_t largest = 0;
    bool any = false;
    for (const auto& l : books_->links) {
        if (!l->up) continue;
        any = true;
        largest = std::max(largest, l->capacity);
        if (call.cpus > l->capacity) continue;
        if (call.kind == detail::call_kind::create) {
            if (best == nullptr || l->actors < best->actors) best = l.get();
            continue;
        }
        const bool is_free = call.nested || call.cpus == 0; // may be what another one waits for
        const bool is_shared = l->alone == nullptr && (call.alone == 0 || l->busy == 0);
        const bool room = is_free || (is_shared && l->busy + call.cpus <= l->capacity * l->window);
        if (room && (best == nullptr || l->busy < best->busy)) best = l.get();
    }
    possible = !any || call.cpus <= largest;
    // An actor stays where it is put: rather wait for a worker that is about to come.
    if (best != nullptr && call.kind == detail::call_kind::create && best->actors > 0 &&
        workers() < books_->expected)
        return nullptr;
    return best;
}

SKEIN_INLINE void runtime::pump() {
    pump(detail::call_kind::create);
    pump(detail::call_kind::task);
}

SKEIN_INLINE void runtime::pump(detail::call_kind which) {
    auto& line = which == detail::call_kind::create ? books_->creations : books_->queue;
    std::size_t passed = 0;
    while (!line.empty()) {
        auto& front = line.front();
        if (front->is_done()) {
            line.pop_front();
            continue;
        }
        bool possible = true;
        auto* where = pick(*front, possible);
        if (where == nullptr && possible) {
            if (front->alone == 0 || line.size() == 1) return;
            --front->alone; // others pass it, for a while
            line.push_back(std::move(front));
            line.pop_front();
            if (++passed == line.size()) return;
            continue;
        }
        auto call = std::move(front);
        line.pop_front();
        if (where == nullptr) {
            refuse(*call,
                   error(errc::exhausted, fmt::format("{} asks for {} cpus, more than any worker "
                                                      "has",
                                                      call->name(), call->cpus))
                       .with_hint("start fewer workers with more cores each, or lower .cpus"));
        } else {
            send(*where, std::move(call));
        }
    }
}

SKEIN_INLINE slot_id runtime::take_slot(counted_ptr<detail::call_base> call) {
    if (books_->free.empty()) {
        books_->free.push_back(static_cast<std::uint32_t>(books_->slots.size()));
        books_->slots.emplace_back();
    }
    const auto index = books_->free.back();
    books_->free.pop_back();
    books_->slots[index].call = std::move(call);
    return slot_id(std::uint64_t{books_->slots[index].generation} << 32 | index);
}

/// The call of an id, taken out of its slot; nothing if it is not (or no longer) known.
SKEIN_INLINE counted_ptr<detail::call_base> runtime::free_slot(slot_id id) {
    const auto index = static_cast<std::uint32_t>(id.value());
    if (index >= books_->slots.size() || books_->slots[index].generation != id.value() >> 32 ||
        !books_->slots[index].call)
        return {};
    ++books_->slots[index].generation;
    books_->free.push_back(index);
    return std::move(books_->slots[index].call);
}

namespace detail {

/// What is left of the time when the call leaves, not when it was made.
SKEIN_INLINE void stamp_deadline(const call_base& call, mut_byte_span body) {
    if (!call.rare || call.rare->until == time_point{}) return;
    const auto left = call.rare->until - loop::current().exact_now();
    const std::size_t at = call_head::left_at(call.kind);
    if (body.size() < at + sizeof(std::int64_t)) return;
    store_le(body.data() + at, static_cast<std::uint64_t>(std::max<std::int64_t>(left.count(), 0)));
}

} // namespace detail

SKEIN_INLINE void runtime::send(peer& to, counted_ptr<detail::call_base> call) {
    auto& raw = *call;
    raw.slot = take_slot(std::move(call));
    if (raw.kind == detail::call_kind::task && books_->upstream == nullptr) {
        if (to.busy == 0) {
            to.mark = loop::current().now();
            to.finished = 0;
        }
        to.busy += raw.cpus;
        if (raw.alone != 0 && raw.cpus > 0) to.alone = &raw;
    } else if (raw.kind == detail::call_kind::create && books_->upstream == nullptr) {
        ++to.actors;
    }
    detail::stamp_deadline(raw, raw.body);
    // Only a call that may have to run again keeps its arguments: after its worker's death, or elsewhere
    // when it was taken back; and one that was not sent.
    const bool keep = raw.kind == detail::call_kind::task && books_->upstream == nullptr &&
                      (raw.retries_left > 0 || to.page);
    if (keep) {
        transmit(to, raw, raw.body, nullptr);
    } else {
        const counted_ptr<detail::call_base> hold(&raw);
        auto body = std::move(raw.body);
        raw.body = {};
        transmit(to, raw, body, &body);
        if (raw.state == detail::phase::queued) raw.body = std::move(body);
    }
}

SKEIN_INLINE void runtime::transmit(peer& to, detail::call_base& call, byte_span body,
                                    byte_buffer* owned) {
    call.on = &to;
    // A connection that has just broken: the call stays in its slot as "did not run" until the link
    // is settled.
    call.state = detail::phase::queued;
    if (!to.wire->is_open()) return;
    try {
        if (owned != nullptr && owned->size() >= limit::inline_bytes) {
            net::frame f;
            f.kind = detail::message_call;
            f.id = call.slot.value();
            f.body = std::move(*owned);
            to.wire->send(std::move(f));
        } else {
            to.wire->send(detail::message_call, 0, call.slot.value(), body, {});
        }
        call.state = detail::phase::sent;
        call.order = ++to.sent;
        if (to.page && call.kind == detail::call_kind::task && books_->upstream == nullptr)
            remember_task(to, call);
    } catch (const error& e) {
        if (e.code() != errc::too_large) return; // closed or reset: as above
        const auto held = free_slot(call.slot);
        account(to, call);
        if (call.kind == detail::call_kind::create && books_->upstream == nullptr) --to.actors;
        call.fail({e, nullptr});
    }
}

/// A task has left its worker: its cores are free, and the worker's pace is known better.
SKEIN_INLINE void runtime::account(peer& from, const detail::call_base& call) {
    if (books_->upstream != nullptr || call.kind != detail::call_kind::task) return;
    if (!from.tasks.empty() && from.tasks.front().order == call.order) from.tasks.pop_front();
    if (from.alone == &call) from.alone = nullptr;
    if (call.cpus == 0) return;
    from.busy -= std::min<std::uint32_t>(from.busy, call.cpus);
    const auto now = loop::current().now();
    ++from.finished;
    if (now <= from.mark) return;
    const double each = to_seconds(now - from.mark) / from.finished;
    from.service = each < from.service ? each : (from.service + each) / 2;
    from.window = static_cast<std::uint32_t>(std::clamp(1e-3 / from.service, 1.0, 1024.0));
    from.mark = now;
    from.finished = 0;
}

/// True: a call that was sent has not begun and never will; it is out of its slot and of its worker's books.
SKEIN_INLINE bool runtime::take_back(detail::call_base& call) {
    if (books_->upstream != nullptr || call.state != detail::phase::sent || call.on == nullptr ||
        call.kind == detail::call_kind::create || !call.on->page.take_back(call.order))
        return false;
    const auto held = free_slot(call.slot);
    account(*call.on, call);
    call.on = nullptr;
    call.state = detail::phase::queued;
    return true;
}

/// Those that ended out of order are forgotten now and then.
SKEIN_INLINE void runtime::remember_task(peer& to, const detail::call_base& call) {
    to.tasks.push_back({call.slot, call.order});
    if (to.tasks.size() < to.prune_at) return;
    to.prune_at = std::max<std::size_t>(2 * detail::claims::entries, 2 * prune_tasks(to));
}

/// Forgets the tasks that a worker has begun; gives how many are left to take back.
SKEIN_INLINE std::size_t runtime::prune_tasks(peer& of) {
    while (!of.tasks.empty() && of.page.has_begun(of.tasks.front().order)) of.tasks.pop_front();
    return of.tasks.size();
}

/// A worker has nothing to do and nothing waits: it gets half of what waits at the one where most does. The
/// guess how long tasks take was wrong then, or one of them is much longer than the others.
SKEIN_INLINE void runtime::feed(peer& idle) {
    if (!idle.up || idle.busy != 0 || !books_->queue.empty() || books_->closing) return;
    peer* most = nullptr;
    for (const auto& l : books_->links)
        if (l.get() != &idle && l->busy > l->capacity &&
            (most == nullptr || l->tasks.size() > most->tasks.size()))
            most = l.get();
    if (most == nullptr) return;
    std::vector<counted_ptr<detail::call_base>> moved;
    const std::size_t half = (prune_tasks(*most) + 1) / 2;
    while (!most->tasks.empty() &&
           moved.size() < half) { // the last ones: the first ones are about to run
        const auto last = most->tasks.back();
        most->tasks.pop_back();
        const auto index = static_cast<std::uint32_t>(last.slot.value());
        const auto& held = books_->slots[index];
        if (!held.call || held.call->slot != last.slot || held.call->on != most) continue; // done
        const counted_ptr<detail::call_base> call(held.call.get());
        if (call->cpus > idle.capacity || call->alone != 0 || call->is_done()) continue;
        if (!take_back(*call)) break; // the worker is there already
        moved.push_back(call);
    }
    while (!moved.empty()) {
        send(idle, std::move(moved.back()));
        moved.pop_back();
    }
}

} // namespace skein::rt


// ======== skein/rt/detail/remote.hpp, continued
#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace skein::rt::detail {

// ---- executing side ----------------------------------------------------------------------------

template <class Tuple>
inline constexpr bool has_span = false;
template <class... T>
inline constexpr bool has_span<std::tuple<T...>> =
    ((is_view<T> && !std::is_same_v<T, std::string_view>) || ...);
/// An actor of type T.
template <class T>
struct box_of : actor_box {
    template <class... A>
    explicit box_of(std::in_place_t, A&&... args)
        : actor_box(typeid(T)), value(make(std::forward<A>(args)...)) {}
    T value;

private:
    template <class... A>
    static T make(A&&... args) {
        if constexpr (std::is_constructible_v<T, A&&...>) {
            return T(std::forward<A>(args)...);
        } else {
            return T{std::forward<A>(args)...};
        }
    }
};

/// Calls F with decoded arguments; a member gets its object first.
template <auto F, class T, class Arguments>
decltype(auto) call_now(actor_box* box, Arguments& arguments) {
    return std::apply(
        [&](auto&... a) -> decltype(auto) {
            if constexpr (std::is_void_v<T>) {
                (void)box;
                return F(std::move(a)...);
            } else {
                return (static_cast<box_of<T>*>(box)->value.*F)(std::move(a)...);
            }
        },
        arguments);
}

/// A coroutine call: owns its arguments and its actor until it has replied.
template <auto F, class T>
task<void> run_coroutine(runtime* self, std::shared_ptr<peer> from, slot_id id,
                         const function_record* fn, std::shared_ptr<actor_box> box,
                         typename signature<decltype(F)>::arguments arguments) {
    using result_type = typename signature<decltype(F)>::result;
    if (box) --box->not_started;
    try {
        auto work = call_now<F, T>(box.get(), arguments);
        if constexpr (std::is_void_v<result_type>) {
            co_await work;
            self->reply(*from, id, [](wire::writer&) {});
        } else {
            auto value = co_await work;
            self->reply(*from, id, [&](wire::writer& w) { wire::encode(w, value); });
        }
    } catch (...) {
        self->reply_thrown(*from, id, *fn);
    }
}

/// Decodes into `into`, from an aligned copy if it holds views that need one.
template <class Arguments>
result<void> decode_arguments(wire::reader& in, Arguments& into) {
    auto done = wire::decode(in, into);
    if (done && !in.finish()) return in.status();
    return done;
}

/// What a record of function F (of actor type T, or void) does with a call.
template <auto F, class T>
void invoke(incoming_call& call) {
    using traits = signature<decltype(F)>;
    typename traits::arguments arguments;
    byte_buffer aligned;
    result<void> decoded;
    if constexpr (has_span<typename traits::arguments>) {
        // Views need their elements aligned in memory: a frame's body may start anywhere.
        const auto head = call.arguments.position();
        const auto rest = call.arguments.rest();
        aligned.resize(head);
        append(aligned, rest);
        wire::reader in(aligned);
        byte_span skipped;
        in.raw(head, skipped);
        decoded = decode_arguments(in, arguments);
    } else {
        decoded = decode_arguments(call.arguments, arguments);
    }
    if (!decoded) return call.refuse(decoded.error());
    if constexpr (traits::is_coroutine) {
        if (call.box) ++call.box->not_started;
        call.self.start(call, run_coroutine<F, T>(&call.self, call.from, call.slot, &call.fn,
                                                  call.box, std::move(arguments)));
    } else {
        try {
            if constexpr (std::is_void_v<typename traits::result>) {
                call_now<F, T>(call.box.get(), arguments);
                call.self.reply(*call.from, call.slot, [](wire::writer&) {});
            } else {
                const auto& value = call_now<F, T>(call.box.get(), arguments);
                call.self.reply(*call.from, call.slot,
                                [&](wire::writer& w) { wire::encode(w, value); });
            }
        } catch (...) {
            call.reply_thrown();
        }
    }
}

/// Names a function for the registry.
template <auto F, class T>
struct function_tag {};

template <auto F>
struct plain_name {};

/// The record of one function; odr-using `registered` puts it into the registry before main.
template <auto F, class T>
struct record {
    using traits = signature<decltype(F)>;
    static std::uint64_t signature_hash() {
        return hash_mix(wire::schema_hash<typename traits::arguments>(),
                        wire::schema_hash<typename traits::result>());
    }
    static std::string signature_text() {
        return wire::schema_text<typename traits::arguments>() + " -> " +
               wire::schema_text<typename traits::result>();
    }
    static function_record& entry() {
        static function_record made = [] {
            function_record r;
            r.mangled = std::is_void_v<T> ? typeid(plain_name<F>).name()
                                          : typeid(function_tag<F, T>).name();
            r.shown = typeid(plain_name<F>).name();
            if constexpr (!std::is_void_v<T>) r.actor = &typeid(T);
            r.invoke = &invoke<F, T>;
            r.is_coroutine = traits::is_coroutine;
            r.signature_hash = &signature_hash;
            r.signature_text = &signature_text;
            return r;
        }();
        return made;
    }
    static inline const bool registered = (registry::add(entry()), true);
};

// ---- calling side ------------------------------------------------------------------------------

/// An argument that may have to wait: a ref, or a value already converted.
template <class P, class A>
auto hold_argument(A&& a) {
    using given = std::remove_cvref_t<A>;
    if constexpr (unwrap_ref<given>::is_ref) {
        return given(std::forward<A>(a));
    } else if constexpr (is_view<P>) {
        // A view would not outlive the caller's object.
        if constexpr (std::is_same_v<P, std::string_view>) {
            return std::string(std::string_view(a));
        } else {
            const P view(a);
            return std::vector<std::remove_const_t<typename P::element_type>>(view.begin(),
                                                                              view.end());
        }
    } else {
        return P(std::forward<A>(a));
    }
}

/// Appends an argument as a P.
template <class P, class A>
void encode_argument(wire::writer& to, const A& a) {
    if constexpr (unwrap_ref<A>::is_ref) {
        encode_argument<P>(to, *a.state()->value);
    } else if constexpr (std::is_same_v<A, P>) {
        wire::encode(to, a);
    } else {
        const P converted(a);
        wire::encode(to, converted);
    }
}

template <class Parameters, class... Held>
class held_arguments;
template <class... P, class... Held>
class held_arguments<std::tuple<P...>, Held...> final : public deferred_arguments {
public:
    explicit held_arguments(Held... held) : held_(std::move(held)...) {}
    void encode(wire::writer& to) override {
        std::apply([&](const auto&... a) { (encode_argument<P>(to, a), ...); }, held_);
    }
    const failure* failed() const noexcept override {
        const failure* found = nullptr;
        const auto look = [&](const auto& a) {
            if constexpr (unwrap_ref<std::remove_cvref_t<decltype(a)>>::is_ref)
                if (found == nullptr && a.state()->failed()) found = &a.state()->why();
        };
        std::apply([&](const auto&... a) { (look(a), ...); }, held_);
        return found;
    }

private:
    std::tuple<Held...> held_;
};

/// Submits: at once if every argument is there, else when the last one is.
template <class Arguments, class... A>
struct submission;
template <class... P, class... A>
struct submission<std::tuple<P...>, A...> {
    static constexpr bool any_ref = (false || ... || unwrap_ref<std::remove_cvref_t<A>>::is_ref);

    static void go(runtime& by, const counted_ptr<call_base>& call, A&&... args) {
        if constexpr (any_ref) {
            std::size_t pending = 0;
            bool failed = false;
            const auto look = [&](const auto& a) {
                if constexpr (unwrap_ref<std::remove_cvref_t<decltype(a)>>::is_ref) {
                    pending += !a.ready();
                    failed |= a.ready() && a.state()->failed();
                }
            };
            (look(args), ...);
            if (pending != 0 || failed)
                return wait_for(by, call, pending, std::forward<A>(args)...);
        }
        by.submit(call, [&](wire::writer& to) { (encode_argument<P>(to, args), ...); });
    }

    static void wait_for(runtime& by, const counted_ptr<call_base>& call, std::size_t pending,
                         A&&... args) {
        using held =
            held_arguments<std::tuple<P...>, decltype(hold_argument<P>(std::forward<A>(args)))...>;
        const auto depend = [&](const auto& a) {
            if constexpr (unwrap_ref<std::remove_cvref_t<decltype(a)>>::is_ref)
                if (!a.ready()) a.state()->add_dependent(call);
        };
        (depend(args), ...);
        // One more than the refs that are waited for: the call is looked at once at the end.
        by.submit_deferred(call, pending + 1,
                           std::make_unique<held>(hold_argument<P>(std::forward<A>(args))...));
        by.argument_ready(*call);
    }
};

template <auto F>
auto call_function(runtime& by, const call_options& how, auto&&... args) {
    using traits = signature<decltype(F)>;
    using result_type = typename traits::result;
    if constexpr (parameter_check<typename traits::parameters>::ok && check_result<result_type>() &&
                  argument_check<typename traits::parameters, decltype(args)...>::ok) {
        static_assert(
            !traits::is_coroutine || !any_holds_view<typename traits::arguments>,
            "skein: a remote coroutine cannot take a span or string_view: it outlives the "
            "message the view points into; take a vector or string");
        (void)record<F, void>::registered;
        counted_ptr<ref_state<result_type>> call(new ref_state<result_type>);
        apply_options(*call, record<F, void>::entry(), how, call_kind::task);
        submission<typename traits::arguments, decltype(args)...>::go(
            by, call, std::forward<decltype(args)>(args)...);
        return ref<result_type>(std::move(call));
    } else {
        return ref<result_type>(); // a static_assert above has said why
    }
}

template <auto M, class T>
auto call_method(const call_options& how, const counted_ptr<actor_state>& lane, auto&&... args) {
    using traits = signature<decltype(M)>;
    using result_type = typename traits::result;
    static_assert(traits::is_member && (std::is_same_v<typename traits::class_type, T> ||
                                        std::is_base_of_v<typename traits::class_type, T>),
                  "skein: call<&T::m> needs a member function of the actor's own type");
    if constexpr (parameter_check<typename traits::parameters>::ok && check_result<result_type>() &&
                  argument_check<typename traits::parameters, decltype(args)...>::ok) {
        static_assert(
            !traits::is_coroutine || !any_holds_view<typename traits::arguments>,
            "skein: a remote coroutine cannot take a span or string_view: it outlives the "
            "message the view points into; take a vector or string");
        (void)record<M, T>::registered;
        auto& by = runtime_of(lane);
        counted_ptr<ref_state<result_type>> call(new ref_state<result_type>);
        apply_options(*call, record<M, T>::entry(), how, call_kind::method);
        call->lane = lane;
        call->target = lane->id;
        submission<typename traits::arguments, decltype(args)...>::go(
            by, call, std::forward<decltype(args)>(args)...);
        return ref<result_type>(std::move(call));
    } else {
        return ref<result_type>();
    }
}

} // namespace skein::rt::detail


// ======== skein/rt/remote.hpp, continued
#include <utility>

namespace skein {

template <class T>
class actor_handle;

/// remote<&f> with its options; call it like f.
template <auto F>
class remote_function {
    using traits = rt::detail::signature<decltype(F)>;

public:
    constexpr remote_function() noexcept = default;

    /// The same function with options for the call that follows.
    [[nodiscard]] constexpr remote_function with(call_options how) const noexcept {
        remote_function copy = *this;
        copy.how_ = how;
        return copy;
    }
    /// The same function, submitted to this runtime instead of the thread's current one.
    [[nodiscard]] constexpr remote_function on(rt::runtime& by) const noexcept {
        remote_function copy = *this;
        copy.by_ = &by;
        return copy;
    }

    /// Submits the call and returns at once.
    ///   args    the function's arguments, or refs to them; a method takes its handle first
    ///   errors  none here: they come when the ref is awaited
    template <class... A>
        requires(!rt::detail::signature<decltype(F)>::is_member)
    [[nodiscard]] auto operator()(A&&... args) const {
        return rt::detail::call_function<F>(by_ != nullptr ? *by_ : rt::runtime::current(), how_,
                                            std::forward<A>(args)...);
    }
    /// A method: its ref may be dropped, as that of actor_handle::call().
    template <class T, class... A>
        requires(rt::detail::signature<decltype(F)>::is_member)
    auto operator()(const actor_handle<T>& actor, A&&... args) const {
        return rt::detail::call_method<F, T>(how_, actor.lane(), std::forward<A>(args)...);
    }

private:
    call_options how_;
    rt::runtime* by_ = nullptr;
};

/// remote<&f>(args...), remote<&f>.with({...})(args...), remote<&T::m>(handle, args...).
template <auto F>
inline constexpr remote_function<F> remote{};

} // namespace skein


// ======== skein/rt/actor.hpp, continued
#include <concepts>
#include <string>
#include <type_traits>
#include <utility>

namespace skein {

/// A counted handle to an actor of type T; one pointer wide, copyable, and an argument of calls.
template <class T>
class actor_handle {
public:
    using actor_type = T;

    actor_handle() noexcept = default;
    explicit actor_handle(counted_ptr<rt::detail::actor_state> lane) noexcept
        : lane_(std::move(lane)) {}

    /// False if default-constructed or moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(lane_); }
    /// Which actor; the same in all processes of one run.
    [[nodiscard]] actor_id id() const noexcept { return lane_ ? lane_->id : actor_id{}; }

    /// Submits a call of a method; see remote<>. Calls through copies of one handle stay in order. The
    /// ref may be dropped: the call runs all the same, and a failure that nobody can see is logged.
    /// With options: remote<&T::m>.with({...})(handle, args...).
    template <auto M, class... A>
    auto call(A&&... args) const {
        return rt::detail::call_method<M, T>(call_options(), lane_, std::forward<A>(args)...);
    }
    friend bool operator==(const actor_handle&, const actor_handle&) = default;

    [[nodiscard]] const counted_ptr<rt::detail::actor_state>& lane() const noexcept {
        return lane_;
    }

private:
    counted_ptr<rt::detail::actor_state> lane_;
};

namespace rt::detail {

/// How a constructor argument travels: decayed, text as std::string.
template <class A>
struct travelling {
    using type = std::decay_t<A>;
};
template <class A>
    requires(unwrap_ref<std::remove_cvref_t<A>>::is_ref)
struct travelling<A> {
    using type = typename unwrap_ref<std::remove_cvref_t<A>>::type;
};
template <class A>
    requires(std::is_convertible_v<std::decay_t<A>, std::string_view>)
struct travelling<A> {
    using type = std::string;
};

template <class T, class... A>
void invoke_create(incoming_call& call) {
    std::tuple<A...> arguments;
    if (auto decoded = decode_arguments(call.arguments, arguments); !decoded)
        return call.refuse(decoded.error());
    try {
        auto box = std::apply(
            [](auto&... a) { return std::make_shared<box_of<T>>(std::in_place, std::move(a)...); },
            arguments);
        call.self.insert_actor(call.target, std::move(box));
        call.self.reply(*call.from, call.slot, [](wire::writer&) {});
    } catch (...) {
        call.reply_thrown();
    }
}

/// Names a constructor for the registry.
template <class T, class... A>
struct constructor_of {};

template <class T, class... A>
struct create_record {
    static std::uint64_t signature_hash() { return wire::schema_hash<std::tuple<A...>>(); }
    static std::string signature_text() { return wire::schema_text<std::tuple<A...>>(); }
    static function_record& entry() {
        static function_record made = [] {
            function_record r;
            r.mangled = typeid(constructor_of<T, A...>).name();
            r.is_constructor = true;
            r.actor = &typeid(T);
            r.invoke = &invoke_create<T, A...>;
            r.signature_hash = &signature_hash;
            r.signature_text = &signature_text;
            return r;
        }();
        return made;
    }
    static inline const bool registered = (registry::add(entry()), true);
};

template <class T, class... A>
concept makes =
    std::is_constructible_v<T, A...> || requires(A&&... a) { T{std::forward<A>(a)...}; };

/// Waits for the constructor's reply. Who makes an actor chooses its id, so it holds the lane already: if
/// this task is dropped, before the reply or after it, so is the actor.
template <class T>
task<actor_handle<T>> finish_create(ref<void> made, counted_ptr<actor_state> lane) {
    co_await made;
    co_return actor_handle<T>(std::move(lane));
}

} // namespace rt::detail

/// Makes a T on the worker with the fewest actors, from these arguments (aggregates too).
/// Submitted at once; suspends until the constructor has returned.
///   errors  remote_error (the constructor threw), worker_lost
template <class T, class... A>
[[nodiscard]] task<actor_handle<T>> actor(A&&... args) {
    using namespace rt::detail;
    constexpr bool can_make = makes<T, typename travelling<A>::type...>;
    static_assert(can_make,
                  "skein: the actor cannot be made from these arguments: its constructor (or "
                  "its fields) must take their values, or refs to them");
    constexpr bool can_send = (true && ... && wire::encodable<typename travelling<A>::type>);
    static_assert(can_send,
                  "skein: an argument type cannot be sent: make it a plain aggregate of types "
                  "that can, or specialise skein::wire::codec for it");
    if constexpr (can_make && can_send) {
        (void)create_record<T, typename travelling<A>::type...>::registered;
        auto& by = rt::runtime::current();
        counted_ptr<ref_state<void>> call(new ref_state<void>);
        apply_options(*call, create_record<T, typename travelling<A>::type...>::entry(), {},
                      call_kind::create);
        call->target = by.new_actor_id();
        auto lane = by.actor_lane(call->target);
        lane->owned = true; // means nothing until the actor is somewhere
        submission<std::tuple<typename travelling<A>::type...>, A...>::go(by, call,
                                                                          std::forward<A>(args)...);
        return finish_create<T>(ref<void>(std::move(call)), std::move(lane));
    } else {
        return {};
    }
}

} // namespace skein

/// A handle travels as the actor's id; it is decoded while a call runs on a runtime.
template <class T>
struct skein::wire::codec<skein::actor_handle<T>> {
    static constexpr const char* schema = "actor";
    static void encode(writer& to, const skein::actor_handle<T>& h) {
        to.fixed(h.id().value().incarnation);
        to.fixed(h.id().value().number);
        // A handle given as an argument, or inside one, keeps its actor until the call is done.
        using lane = skein::counted_ptr<skein::rt::detail::actor_state>;
        if (auto* call = skein::rt::runtime::encoding(); call != nullptr && h)
            call->keep(std::make_shared<lane>(h.lane()));
    }
    static skein::result<void> decode(reader& from, skein::actor_handle<T>& into) {
        skein::unique_number id;
        if (!from.fixed(id.incarnation) || !from.fixed(id.number)) return from.status();
        auto* here = skein::rt::runtime::executing();
        if (here == nullptr)
            return error(errc::not_supported,
                         "not supported: an actor_handle in the result of a call")
                .with_hint("make the actor in the process that uses it and pass the handle as an "
                           "argument");
        if (actor_id(id)) into = skein::actor_handle<T>(here->actor_lane(actor_id(id)));
        return {};
    }
};

// ======== skein/rt/build_id.hpp
// Which build of the program this is: equal for two processes of one executable, different as soon as
// one byte of code or constants differs. Compared before anything is decoded from a worker.
//
// The linker's GNU build-id note if there is one; else a hash over the read-only segments in memory.


#include <cstdint>

namespace skein::rt {

namespace detail {

/// The build-id note inside a note segment; empty if there is none.
[[nodiscard]] byte_span find_build_id(byte_span notes) noexcept;

} // namespace detail

/// The id of the running program; computed once.
[[nodiscard]] std::uint64_t build_id();

} // namespace skein::rt


// ======== skein/rt/detail/build_id.ipp
// The bodies of rt/build_id.hpp.


#include <cstring>

#include <elf.h>
#include <link.h>

namespace skein::rt {

namespace detail {

SKEIN_INLINE byte_span find_build_id(byte_span notes) noexcept {
    const auto padded = [](std::size_t n) { return (n + 3) & ~std::size_t{3}; };
    while (notes.size() >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) head;
        std::memcpy(&head, notes.data(), sizeof head);
        const std::size_t name = sizeof head, desc = name + padded(head.n_namesz);
        const std::size_t end = desc + padded(head.n_descsz);
        if (end > notes.size()) return {};
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 &&
            std::memcmp(notes.data() + name, "GNU", 4) == 0)
            return notes.subspan(desc, head.n_descsz);
        notes = notes.subspan(end);
    }
    return {};
}

SKEIN_INLINE int hash_program(dl_phdr_info* program, std::size_t, void* out) {
    std::uint32_t low = 1, high = 2;
    const auto add = [&](byte_span bytes) {
        low = crc32c(bytes, low);
        high = crc32c(bytes, high ^ 0x5bd1e995u ^ static_cast<std::uint32_t>(bytes.size()));
    };
    const auto segment = [&](const ElfW(Phdr) & h) {
        return byte_span(reinterpret_cast<const std::byte*>(program->dlpi_addr + h.p_vaddr),
                         h.p_memsz);
    };
    byte_span note;
    for (int i = 0; i < program->dlpi_phnum; ++i)
        if (program->dlpi_phdr[i].p_type == PT_NOTE && note.empty())
            note = find_build_id(segment(program->dlpi_phdr[i]));
    if (!note.empty()) {
        add(note);
    } else {
        for (int i = 0; i < program->dlpi_phnum; ++i) {
            const auto& h = program->dlpi_phdr[i];
            if (h.p_type == PT_LOAD && (h.p_flags & PF_W) == 0) add(segment(h));
        }
    }
    *static_cast<std::uint64_t*>(out) = std::uint64_t{high} << 32 | low;
    return 1; // the first entry is the program itself
}

} // namespace detail

SKEIN_INLINE std::uint64_t build_id() {
    static const std::uint64_t id = [] {
        std::uint64_t found = 0;
        ::dl_iterate_phdr(&detail::hash_program, &found);
        return found;
    }();
    return id;
}

} // namespace skein::rt

// ======== skein/rt/local_workers.hpp
// The implicit local cluster: N copies of this program as worker processes, kept alive while the
// driver runs, gone when it is gone.
//
// A worker is /proc/self/exe started again. It inherits one end of a socket pair and a pipe with its
// name and the token (never in argv or the environment), so nothing listens and nothing is left in
// the file system. It dies with the driver (PR_SET_PDEATHSIG), and leaves by itself when the socket
// closes. One that dies is replaced; one that cannot start ends the run with its last words.
//
// The pool knows neither processes nor sockets: loop, network and children are given to it, those of this
// host by run(), simulated ones by tests/sim/local_workers_scenario.cpp.


// ======== skein/rt/worker_link.hpp
// How a worker and its driver meet: what the worker is told when it starts, and how both shake hands.


#include <cstdint>
#include <string>

namespace skein::rt {

class runtime;

/// What a worker is asked for when it is started, see rt::take_boot().
inline constexpr const char* worker_role = "worker";

/// The boot message of a worker.
struct worker_order {
    byte_buffer token;   ///< net::token::size bytes
    std::string address; ///< where to connect; empty: the inherited socket is the link
    std::uint16_t cpus = 1;
};

/// What one side says to the other.
struct worker_link {
    net::token secret;
    std::uint16_t cpus = 0;     ///< of the worker; the driver says 0
    bool in_memory = false;     ///< a socket pair: bytes need no checksum
    bool shares_memory = false; ///< the driver gave it a page
    /// For the other side to load its program, or to compute.
    duration start = duration::zero();
};

/// The options of the connection between them, for both sides.
[[nodiscard]] net::connection_options worker_connection(const runtime& self,
                                                        const worker_link& how);

} // namespace skein::rt


// ======== skein/rt/detail/worker_link.ipp
// The bodies of rt/worker_link.hpp.


namespace skein::rt {

SKEIN_INLINE net::connection_options worker_connection(const runtime& self,
                                                       const worker_link& how) {
    const detail::process_name& who = self.name();
    net::connection_options o;
    o.secret = how.secret;
    o.self.name = who.name;
    o.self.build_id = build_id();
    o.self.registry_hash = registry::instance().hash();
    o.self.pid = who.pid;
    o.self.host = who.host;
    detail::worker_hello hello;
    hello.cpus = how.cpus;
    hello.incarnation = self.incarnation();
    hello.shares_memory = how.shares_memory;
    o.self.extra = wire::encode(hello);
    o.require_same_build = true;
    // Loading the program is part of it, on one side, and a driver that computes, on the other. A worker
    // that dies or a driver that leaves is seen at once.
    o.bounds.handshake_deadline = how.start;
    // The worker executes on its loop: silence means work. Its death closes the socket.
    o.alive.mode = net::keep_alive_mode::off;
    o.checksum_bodies = !how.in_memory; // a socket pair moves bytes from memory to memory
    return o;
}

} // namespace skein::rt

// ======== skein/rt/worker_source.hpp
// Where a driver's workers come from: processes of this host (rt/local_workers.hpp), or leases of a cluster
// (cluster/leased_workers.hpp). run() knows this interface alone; the layer above provides the cluster.


#include <memory>
#include <string>
#include <vector>

namespace skein {
class loop;
}

namespace skein::net {
class network;
}

namespace skein::rt {

class runtime;

/// Brings workers to a driver's runtime. Its serve() must have ended before it is destroyed.
class worker_source {
public:
    worker_source() = default;
    worker_source(const worker_source&) = delete;
    worker_source& operator=(const worker_source&) = delete;
    virtual ~worker_source() = default;

    /// Gets workers and replaces those that are lost, until stop() and the runtime's close().
    [[nodiscard]] virtual task<void> serve() = 0;
    /// No worker comes from now on.
    virtual void stop() noexcept = 0;
};

/// What a program's command line asks of a cluster.
struct cluster_flags {
    std::string address;    ///< --address A: of the head; empty: the environment, else none
    std::string join;       ///< --join A: this process is a node's agent
    bool head = false;      ///< --head: this process is the head
    std::string listen;     ///< --listen A: where the head listens
    std::string token_file; ///< --token-file F
    int workers = 0;        ///< --workers N; 0: as many as the cluster has cores
    std::string program;    ///< argv[0]
};

/// What the layer `cluster` gives to programs.
struct cluster_roles {
    /// The address of the head that flags or environment name; empty: none, the cluster is this host.
    std::string (*address)(const cluster_flags& flags);
    /// Workers of the cluster for a driver. All it is given must outlive it.
    ///   errors  usage (no such address), not_found, permission_denied, malformed (its token)
    std::unique_ptr<worker_source> (*workers)(loop& on, net::network& via, runtime& driver,
                                              const cluster_flags& flags);
    /// The whole life of a head, or of an agent; gives the exit code, throws error.
    int (*head)(const cluster_flags& flags);
    int (*join)(const cluster_flags& flags);
};

/// What this program can be in a cluster; nullptr: nothing, it was compiled header-only without
/// <skein/cluster/program.hpp>.
namespace detail {
inline constinit const cluster_roles* provided_roles = nullptr;
}
[[nodiscard]] inline const cluster_roles* roles_of_program() noexcept {
    return detail::provided_roles;
}
#else
[[nodiscard]] const cluster_roles* roles_of_program() noexcept; // in cluster/detail/program.ipp

} // namespace skein::rt


// ======== skein/rt/local_workers.hpp, continued
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace skein {
class loop;
}

namespace skein::net {
class network;
class stream;
} // namespace skein::net

namespace skein::rt {

class children;
class runtime;

/// How the workers of a run are started.
struct local_workers_options {
    int count = 0;                             ///< 0: one per core
    std::string executable = "/proc/self/exe"; ///< must be the same build as this program
    std::string program = "skein";             ///< argv[0] that `ps` shows
    bool over_tcp = false;                     ///< loopback TCP instead of a Unix socket pair
    time_constants times;
};

/// The worker processes of one driver. Its serve() must have ended before it is destroyed.
class local_workers final : public worker_source {
public:
    ///   via     where it listens for workers that come over TCP
    ///   where   what starts them, and says how many cores there are for them
    /// All of them must outlive it.
    local_workers(skein::loop& on, net::network& via, children& where, runtime& driver,
                  local_workers_options how);
    ~local_workers() override;

    [[nodiscard]] int count() const noexcept;
    /// Places that are filled or will be: those whose workers fail again and again are given up.
    [[nodiscard]] int places() const noexcept;

    /// Starts the workers and replaces those that die, until stop() and the runtime's close().
    [[nodiscard]] task<void> serve() override;
    /// No worker is replaced from now on.
    void stop() noexcept override;

    /// Pids of the workers that run now, for tests and tools.
    [[nodiscard]] const std::vector<pid_t>& pids() const noexcept;

private:
    class pool; // in detail/local_workers.ipp
    std::unique_ptr<pool> pool_;
};

/// True in a process that was started as a worker.
[[nodiscard]] bool is_worker() noexcept;

/// What a worker does between its boot message and its end, in any world: joins its driver, executes the
/// calls, leaves with it.
///   via        where it connects; must live until the task has ended, as must self
///   order      its boot message
///   inherited  the stream that it was started with; nullptr: it connects
///   memory     what its driver shares with it; may be none
///   errors     malformed (the order); those of connection::connect; cancelled
[[nodiscard]] task<void> work_for_driver(net::network* via, runtime* self, byte_buffer order,
                                         std::unique_ptr<net::stream> inherited,
                                         shared_memory memory);

/// The whole life of a worker process: joins its driver, executes, leaves with it. Gives the exit code.
[[nodiscard]] int worker_main();

namespace detail {

/// "w2" for "worker-2": in a process's name there is little room.
[[nodiscard]] std::string short_worker_name(std::string_view name);

/// worker_main(), after which the process ends: in main there may be more, also another run(), that is
/// for the driver only. As at the end of main, static objects are destroyed and the tools that wait for
/// the end of a program (leak check, coverage) do their work; the objects of main itself stay.
[[noreturn]] void live_as_worker();

} // namespace detail

} // namespace skein::rt


// ======== skein/rt/detail/local_workers.ipp
// The bodies of rt/local_workers.hpp: the driver's side with its processes, and the life of a worker.


#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// Failures of a start that would only come again.
[[nodiscard]] constexpr bool is_hopeless(errc code) noexcept {
    return code == errc::mismatch || code == errc::not_found || code == errc::permission_denied;
}

} // namespace detail

class local_workers::pool {
public:
    pool(skein::loop& on, net::network& via, children& where, runtime& driver,
         local_workers_options how)
        : loop_(on), network_(via), children_(where), driver_(driver), how_(std::move(how)),
          secret_(net::token::generate(on.random())) {
        const int cores = children_.resources().cores;
        if (how_.count <= 0) how_.count = cores;
        cpus_ = static_cast<std::uint16_t>(std::max(1, cores / how_.count));
    }

    [[nodiscard]] int count() const noexcept { return how_.count; }
    [[nodiscard]] int places() const noexcept { return alive_; }

    task<void> serve() {
        scope all;
        alive_ = how_.count;
        driver_.expect_workers(static_cast<std::size_t>(alive_));
        for (int i = 1; i <= how_.count; ++i) all.spawn(keep_place(i));
        auto joined = all.join();
        co_await joined;
    }
    void stop() noexcept {
        if (!stopping_) stopped_at_ = loop_.now();
        stopping_ = true;
    }
    [[nodiscard]] const std::vector<pid_t>& pids() const noexcept { return pids_; }

private:
    /// A worker from its start to its end, as its tasks see it.
    struct life {
        std::string name;
        std::unique_ptr<net::listener> listener; ///< over TCP: where it connects
        std::unique_ptr<child> process;
        detail::claims page; ///< shared with it
        std::shared_ptr<net::connection> wire;
    };

    /// One place for a worker: starts it, serves it, starts another when it dies.
    task<void> keep_place(int number) {
        restart_rules rules;
        rules.most = 2;
        rules.factor = 1;
        rules.first_pause = how_.times.reconnect_first;
        rules.is_lasting = detail::is_hopeless;
        restart_policy again(rules);
        while (!stopping_) {
            life one;
            one.name = fmt::format("worker-{}", number);
            auto lived = live(&one, &again);
            const auto failed = co_await lived;
            if (!failed) continue;
            if (stopping_ || failed->code() == errc::cancelled) break;
            auto told = why_not_started(&one, *failed);
            const auto why = co_await told;
            const auto reason = failed->text() + why.cause(); // of many workers: said once
            const auto pause = again.failed(*failed);
            if (!pause) {
                if (--alive_ == 0) driver_.give_up(why);
                driver_.expect_workers(static_cast<std::size_t>(alive_));
                if (last_error_ != reason) logging::error("rt", why.what());
                last_error_ = reason;
                break;
            }
            if (last_warning_ != reason) logging::warn("rt", why.what());
            last_warning_ = reason;
            co_await sleep_for(*pause);
        }
    }

    /// Gives why it did not start; nothing if it did.
    task<std::optional<error>> live(life* one, restart_policy* again) {
        std::optional<error> failed;
        scope watching;
        try {
            auto started =
                with_timeout(children_.start(what_to_start(*one)), how_.times.start_timeout);
            one->process = co_await started;
            watching.spawn(watch_end(one));
            auto met = meet(one);
            one->wire = co_await met;
            pids_.push_back(static_cast<pid_t>(one->process->pid()));
            again->worked();
            last_warning_ = last_error_ = {};
            auto served = driver_.serve_worker(
                one->wire, [this, one](const peer&) { return farewell(one->process.get()); },
                one->page);
            co_await served;
        } catch (const error& e) {
            failed = e;
        }
        watching.cancel();
        auto watched = as_result(shield(watching.join())); // it refers to what is here
        (void)co_await watched;
        if (!one->process) co_return failed;
        std::erase(pids_, static_cast<pid_t>(one->process->pid()));
        if (one->process->running()) {
            // It may still be loading and hear nobody.
            if (failed && (failed->code() == errc::cancelled || failed->code() == errc::timeout))
                one->process->signal(SIGTERM);
            auto gone = farewell(one->process.get());
            auto sure = shield(std::move(gone));
            (void)co_await sure;
        }
        co_return failed;
    }

    child_options what_to_start(life& one) {
        worker_order boot;
        boot.token = to_buffer(secret_.bytes());
        boot.cpus = cpus_;
        if (how_.over_tcp) {
            one.listener = network_.listen(net::address::tcp("127.0.0.1", 0));
            boot.address = net::to_string(one.listener->local());
        }
        child_options how;
        how.role = worker_role;
        how.name = one.name;
        how.message = wire::encode(boot);
        how.socket = !how_.over_tcp;
        how.memory = shared_memory::create(detail::claims::bytes);
        one.page = detail::claims(how.memory);
        how.executable = how_.executable;
        how.argv = {how_.program, "--skein-worker=" + one.name};
        return how;
    }

    /// Shakes hands with a process that has been started.
    task<std::shared_ptr<net::connection>> meet(life* one) {
        auto stream = one->process->take_stream();
        if (one->listener) {
            auto accepted = with_timeout(one->listener->accept(), how_.times.start_timeout);
            stream = co_await accepted;
        }
        worker_link ours{secret_};
        ours.in_memory = !one->listener;
        ours.shares_memory = true;
        ours.start = how_.times.start_timeout;
        auto link = worker_connection(driver_, ours);
        link.bounds.close_deadline = how_.times.shutdown_grace; // part of it, see patience()
        auto shaken = net::connection::accept(std::move(stream), std::move(link));
        co_return co_await shaken;
    }

    /// Ends the link when the process has ended. A child of the worker may hold the other end of the
    /// socket, so that the end of the stream is not seen; what the worker said before is still read.
    task<void> watch_end(life* one) {
        auto ended = one->process->ended(); // the end of a socket pair with it
        (void)co_await ended;
        if (!one->listener) co_return;
        one->listener->close();                         // it never came
        co_await sleep_for(how_.times.reconnect_first); // TCP: its bytes are on the way
        if (one->wire) one->wire->abort(error(errc::reset, "the process has ended"));
    }

    /// "worker-1 did not start: ...", with what it said last, or how it ended.
    task<error> why_not_started(life* one, error failed) {
        error why(failed.code(), fmt::format("{} did not start: {}", one->name, failed.text()));
        std::string cause = failed.cause();
        if (one->process && !one->process->running()) {
            auto ended = one->process->ended();
            const auto end = co_await ended;
            cause = end.last_words.empty() ? end.status.describe() : end.last_words;
        }
        why.with_cause(std::move(cause));
        if (!failed.hint().empty()) why.with_hint(failed.hint());
        co_return why;
    }

    /// What is left of the grace that all of the end shares, the goodbye over the link included.
    [[nodiscard]] duration patience(duration most) const {
        if (!stopping_) return most;
        const duration left = stopped_at_ + how_.times.shutdown_grace - loop_.now();
        return std::clamp(left, duration::zero(), most);
    }

    /// Waits for the end of a process whose link has ended; asks, then insists.
    task<std::string> farewell(child* process) {
        const auto first =
            patience(stopping_ ? how_.times.farewell_stopping : how_.times.farewell_first);
        const auto all = patience(first + how_.times.shutdown_grace);
        auto stopped = rt::stop(*process, first, all - first);
        const auto end = co_await stopped;
        co_return end.status.describe();
    }

    skein::loop& loop_;
    net::network& network_;
    children& children_;
    runtime& driver_;
    local_workers_options how_;
    net::token secret_;
    std::uint16_t cpus_ = 1;
    std::vector<pid_t> pids_;
    int alive_ = 0;
    bool stopping_ = false;
    time_point stopped_at_{};
    std::string last_warning_, last_error_;
};

SKEIN_INLINE local_workers::local_workers(skein::loop& on, net::network& via, children& where,
                                          runtime& driver, local_workers_options how)
    : pool_(std::make_unique<pool>(on, via, where, driver, std::move(how))) {}
SKEIN_INLINE local_workers::~local_workers() = default;
SKEIN_INLINE int local_workers::count() const noexcept { return pool_->count(); }
SKEIN_INLINE int local_workers::places() const noexcept { return pool_->places(); }
SKEIN_INLINE task<void> local_workers::serve() { return pool_->serve(); }
SKEIN_INLINE void local_workers::stop() noexcept { pool_->stop(); }
SKEIN_INLINE const std::vector<pid_t>& local_workers::pids() const noexcept {
    return pool_->pids();
}

SKEIN_INLINE bool is_worker() noexcept { return started_as(worker_role); }

namespace detail {

SKEIN_INLINE std::string short_worker_name(std::string_view name) {
    constexpr std::string_view usual = "worker-";
    return name.starts_with(usual) ? "w" + std::string(name.substr(usual.size()))
                                   : std::string(name);
}

/// The worker's own process: what it inherited, and the network of its host.
SKEIN_INLINE task<void> work(net::real_loop* loop, runtime* self, boot mine) {
    net::real_network network(*loop);
    std::unique_ptr<net::stream> inherited;
    if (mine.socket) inherited = net::adopt_unix_stream(*loop, mine.socket.release(), "driver");
    auto working = work_for_driver(&network, self, std::move(mine.message), std::move(inherited),
                                   std::move(mine.memory));
    co_await working;
}

} // namespace detail

SKEIN_INLINE task<void> work_for_driver(net::network* via, runtime* self, byte_buffer order,
                                        std::unique_ptr<net::stream> inherited,
                                        shared_memory memory) {
    auto mine = wire::decode<worker_order>(order);
    if (!mine || mine->token.size() != net::token::size)
        throw error(errc::malformed, "the boot message of this worker cannot be read");
    const auto secret = net::token::from_hex(to_hex(mine->token)).value();
    const bool in_memory = inherited != nullptr;
    worker_link ours{secret, mine->cpus, in_memory, static_cast<bool>(memory)};
    ours.start = time_constants::lan().start_timeout;
    auto options = worker_connection(*self, ours);
    net::address to;
    if (!in_memory) to = net::address::parse(mine->address).value();
    net::connected_network pair(std::move(inherited));
    net::network& network = in_memory ? pair : *via;
    auto connecting = net::connection::connect(network, to, std::move(options));
    auto wire = co_await connecting;
    auto served =
        self->serve_driver(wire, memory ? detail::claims(std::move(memory)) : detail::claims());
    co_await served;
    auto closed = wire->close();
    co_await closed;
}

SKEIN_INLINE int worker_main() {
    try {
        auto mine = take_boot(worker_role);
        if (!mine) throw error(errc::usage, "this process was not started as a worker");
        name_process(detail::short_worker_name(mine->name));
        net::real_loop loop;
        runtime_options who;
        who.name = mine->name;
        who.host = host_name();
        who.pid = ::getpid();
        runtime self(who);
        const runtime::use current(self);
        loop.run(detail::work(&loop, &self, std::move(*mine)));
        return exit_code::done;
    } catch (const std::exception& e) {
        if (!leave_last_words(e.what())) fmt::print(stderr, "error: {}\n", e.what());
        return exit_code::failed;
    } catch (...) {
        static constexpr const char* why = "something that is not a std::exception was thrown";
        if (!leave_last_words(why)) fmt::print(stderr, "error: {}\n", why);
        return exit_code::failed;
    }
}

[[noreturn]] SKEIN_INLINE void detail::live_as_worker() {
    // Of several threads that call run() one is the worker; the others wait for its end.
    static constinit std::atomic_flag taken = ATOMIC_FLAG_INIT;
    while (taken.test_and_set()) ::pause();
    std::exit(worker_main());
}

} // namespace skein::rt

// ======== skein/rt/resources.hpp
// What a place has and what a request asks for: cpus, gpus, memory, and resources that a program names itself.
//
//     auto have = rt::parse_resources(text).value(); // "cpu=8,gpu=2,memory=4GiB,ssd=1"
//     rt::resources need;
//     need.cpu = rt::amount::from(0.5);
//     if (rt::fits(need, have)) have -= need;
//
// Amounts are whole numbers of 1/10000, so that ten times 0.1 is 1 and what was taken can be given back
// exactly; memory is in bytes. Nothing here depends on a machine: what a host has is measured elsewhere.


#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace skein::rt {

/// A number of cpus, gpus or units of a custom resource, in steps of 1/10000. Never negative in resources;
/// differences may be.
class amount {
public:
    static constexpr std::int64_t steps = 10'000; ///< steps in one
    static constexpr std::int64_t most =
        1'000'000'000; ///< what parse and from() take at most, in ones

    constexpr amount() noexcept = default;
    /// A whole number.
    constexpr amount(int n) noexcept : raw_(steps * n) {}
    /// Would lose its fraction: amount::from(0.5).
    amount(double) = delete;
    amount(float) = delete;
    /// In steps of 1/10000.
    [[nodiscard]] static constexpr amount of_steps(std::int64_t n) noexcept {
        amount a;
        a.raw_ = n;
        return a;
    }
    /// The nearest step. Throws error (invalid_argument) for what is negative, no number, more than `most`, or
    /// not zero and nearer to zero than to one step.
    [[nodiscard]] static amount from(double n);

    [[nodiscard]] constexpr std::int64_t in_steps() const noexcept { return raw_; }
    [[nodiscard]] constexpr bool is_whole() const noexcept { return raw_ % steps == 0; }
    constexpr explicit operator bool() const noexcept { return raw_ != 0; }

    constexpr amount& operator+=(amount b) noexcept {
        raw_ += b.raw_;
        return *this;
    }
    constexpr amount& operator-=(amount b) noexcept {
        raw_ -= b.raw_;
        return *this;
    }
    friend constexpr amount operator+(amount a, amount b) noexcept { return a += b; }
    friend constexpr amount operator-(amount a, amount b) noexcept { return a -= b; }
    friend constexpr auto operator<=>(amount, amount) noexcept = default;

private:
    std::int64_t raw_ = 0;
};

/// A resource that is only a name and a number, such as licences: ssd=1.
struct custom_resource {
    std::string name; ///< a letter, then letters, digits, '_', '-', '.'; at most 64
    amount value;
    friend auto operator<=>(const custom_resource&, const custom_resource&) = default;
};

/// Bounds of what is parsed, so that text from outside cannot take much.
struct resource_limits {
    std::size_t text = 4096;                       ///< bytes
    std::size_t custom = 32;                       ///< custom resources
    std::uint64_t memory = std::uint64_t{1} << 50; ///< bytes: 1 PiB
};

/// Amounts of several resources. What is not named is zero.
struct resources {
    amount cpu, gpu;
    std::uint64_t memory = 0;            ///< bytes
    std::vector<custom_resource> custom; ///< in the order of their names, none twice, none zero

    /// The amount of a custom resource.
    [[nodiscard]] amount of(std::string_view name) const noexcept;
    /// Sets a custom resource; zero removes it. Throws error (invalid_argument) for a name that is none.
    resources& set(std::string_view name, amount value);
    [[nodiscard]] bool empty() const noexcept {
        return !cpu && !gpu && memory == 0 && custom.empty();
    }

    resources& operator+=(const resources& more);
    /// `less` must fit in this.
    resources& operator-=(const resources& less);

    friend bool operator==(const resources&, const resources&) = default;
    /// An order for keys of maps; fits() says whether one is enough for the other.
    friend auto operator<=>(const resources&, const resources&) = default;
};

/// True if no amount of `need` is larger than that of `have`.
[[nodiscard]] bool fits(const resources& need, const resources& have) noexcept;

/// Reads "cpu=2,gpu=0.5,memory=4GiB,ssd=1". Memory takes B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, or bytes; at most
/// four decimals; bytes are rounded up. An error says which part is wrong and how to write it.
[[nodiscard]] result<resources> parse_resources(std::string_view text,
                                                const resource_limits& limits = {});

/// What parse_resources() reads: "cpu=2,gpu=0.5,memory=4GiB,ssd=1"; without anything "".
[[nodiscard]] std::string to_string(const resources& r);
/// "0.5"
[[nodiscard]] std::string to_string(amount a);

/// Whether this can be asked for: more than one gpu must be a whole number, for a share of a gpu lies on one gpu.
[[nodiscard]] result<void> check_demand(const resources& need);
/// Whether a place can have this: its gpus are whole, and at most 64.
[[nodiscard]] result<void> check_total(const resources& total);

/// Gpus of one host by their index there, at most 64.
class gpu_set {
public:
    static constexpr int most = 64;

    constexpr gpu_set() noexcept = default;
    constexpr explicit gpu_set(std::uint64_t bits) noexcept : bits_(bits) {}

    [[nodiscard]] constexpr std::uint64_t bits() const noexcept { return bits_; }
    [[nodiscard]] constexpr bool has(int index) const noexcept { return (bits_ >> index & 1) != 0; }
    constexpr void insert(int index) noexcept { bits_ |= std::uint64_t{1} << index; }
    [[nodiscard]] constexpr bool empty() const noexcept { return bits_ == 0; }
    friend constexpr bool operator==(gpu_set, gpu_set) noexcept = default;

private:
    std::uint64_t bits_ = 0;
};
/// "0,3": what a variable such as CUDA_VISIBLE_DEVICES takes.
[[nodiscard]] std::string to_string(gpu_set gpus);

} // namespace skein::rt


// ======== skein/rt/detail/resources.ipp
// The bodies of rt/resources.hpp: reading, printing and checking amounts.


#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

struct memory_unit {
    std::string_view name;
    std::uint64_t bytes;
};
inline constexpr std::array<memory_unit, 9> memory_units{{{"TiB", std::uint64_t{1} << 40},
                                                          {"GiB", std::uint64_t{1} << 30},
                                                          {"MiB", std::uint64_t{1} << 20},
                                                          {"KiB", std::uint64_t{1} << 10},
                                                          {"TB", 1'000'000'000'000},
                                                          {"GB", 1'000'000'000},
                                                          {"MB", 1'000'000},
                                                          {"kB", 1'000},
                                                          {"B", 1}}};

inline bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

inline bool is_resource_name(std::string_view name) noexcept {
    if (name.empty() || name.size() > 64 || !is_letter(name.front())) return false;
    return std::all_of(name.begin(), name.end(), [](char c) {
        return is_letter(c) || is_digit(c) || c == '_' || c == '-' || c == '.';
    });
}

/// Text for a message: bounded, and without what a terminal would obey.
inline std::string shown(std::string_view text) {
    std::string s(text.substr(0, 40));
    for (auto& c : s)
        if (c < ' ' || c > '~') c = '?';
    return text.size() > 40 ? s + "..." : s;
}

/// Digits with at most four decimals, in steps of 1/10000; nothing if it is something else or above `most` ones.
inline std::optional<std::uint64_t> read_steps(std::string_view text, std::uint64_t most) {
    std::uint64_t whole = 0, part = 0;
    std::size_t i = 0, decimals = 0;
    for (; i < text.size() && is_digit(text[i]); ++i) {
        whole = whole * 10 + static_cast<std::uint64_t>(text[i] - '0');
        if (whole > most) return std::nullopt;
    }
    if (i == 0) return std::nullopt;
    if (i < text.size()) {
        if (text[i] != '.' || i + 1 == text.size()) return std::nullopt;
        for (++i; i < text.size(); ++i) {
            if (!is_digit(text[i]) || ++decimals > 4) return std::nullopt;
            part = part * 10 + static_cast<std::uint64_t>(text[i] - '0');
        }
    }
    for (; decimals < 4; ++decimals) part *= 10;
    if (whole == most && part != 0) return std::nullopt;
    return whole * amount::steps + part;
}

inline error bad_amount(std::string_view name, std::string_view value) {
    return error(errc::invalid_argument,
                 fmt::format("{}={} is no amount", shown(name), shown(value)))
        .with_hint(fmt::format("write {0}=2 or {0}=0.5: at most four decimals, 0 to {1}",
                               shown(name), amount::most));
}

inline result<std::uint64_t> read_memory(std::string_view value, std::uint64_t most) {
    std::uint64_t unit = 1;
    auto digits = value;
    for (const auto& u : memory_units)
        if (value.ends_with(u.name)) {
            unit = u.bytes;
            digits.remove_suffix(u.name.size());
            break;
        }
    const auto steps = read_steps(digits, most / unit);
    if (!steps)
        return error(errc::invalid_argument,
                     fmt::format("memory={} is no amount of memory", shown(value)))
            .with_hint(
                fmt::format("write memory=512MiB, memory=1.5GiB or bytes; at most {}", most));
    __extension__ using wide = unsigned __int128;
    const auto bytes = (static_cast<wide>(*steps) * unit + amount::steps - 1) / amount::steps;
    return static_cast<std::uint64_t>(bytes);
}

/// Reads one NAME=AMOUNT into r.
inline result<void> read_resource(std::string_view part, resources& r,
                                  const resource_limits& limits) {
    const auto equals = part.find('=');
    const auto name = part.substr(0, equals);
    if (equals == std::string_view::npos || !is_resource_name(name))
        return error(errc::invalid_argument, fmt::format("\"{}\" is no resource", shown(part)))
            .with_hint("write NAME=AMOUNT with a name that begins with a letter: cpu=2,ssd=1");
    const auto value = part.substr(equals + 1);
    if (name == "memory") {
        const auto bytes = read_memory(value, limits.memory);
        if (!bytes) return bytes.error();
        r.memory = *bytes;
        return {};
    }
    const auto steps = read_steps(value, static_cast<std::uint64_t>(amount::most));
    if (!steps) return bad_amount(name, value);
    const auto n = amount::of_steps(static_cast<std::int64_t>(*steps));
    if (name == "cpu") {
        r.cpu = n;
    } else if (name == "gpu") {
        r.gpu = n;
    } else {
        r.set(name, n);
        if (r.custom.size() > limits.custom)
            return error(errc::too_large,
                         fmt::format("more than {} custom resources", limits.custom))
                .with_hint("use labels for what is not counted");
    }
    return {};
}

} // namespace detail

SKEIN_INLINE amount amount::from(double n) {
    const double scaled = n * static_cast<double>(steps);
    const bool in_range = n >= 0 && n <= static_cast<double>(most); // false for what is no number
    if (!in_range || (n > 0 && scaled < 0.5))
        throw error(errc::invalid_argument, fmt::format("{} is no amount of a resource", n))
            .with_hint(fmt::format("amounts are 0, or 0.0001 to {}, in steps of 0.0001", most));
    return of_steps(static_cast<std::int64_t>(std::llround(scaled)));
}

SKEIN_INLINE amount resources::of(std::string_view name) const noexcept {
    for (const auto& c : custom)
        if (c.name == name) return c.value;
    return {};
}

SKEIN_INLINE resources& resources::set(std::string_view name, amount value) {
    if (!detail::is_resource_name(name) || name == "cpu" || name == "gpu" || name == "memory")
        throw error(errc::invalid_argument,
                    fmt::format("\"{}\" is no name of a custom resource", detail::shown(name)))
            .with_hint("a letter, then letters, digits, '_', '-' or '.'; cpu, gpu and memory are "
                       "fields of their own");
    const auto at =
        std::lower_bound(custom.begin(), custom.end(), name,
                         [](const custom_resource& c, std::string_view n) { return c.name < n; });
    const bool there = at != custom.end() && at->name == name;
    if (!value) {
        if (there) custom.erase(at);
    } else if (there) {
        at->value = value;
    } else {
        custom.insert(at, {std::string(name), value});
    }
    return *this;
}

SKEIN_INLINE resources& resources::operator+=(const resources& more) {
    cpu += more.cpu;
    gpu += more.gpu;
    memory += more.memory;
    for (const auto& c : more.custom) set(c.name, of(c.name) + c.value);
    return *this;
}

SKEIN_INLINE resources& resources::operator-=(const resources& less) {
    SKEIN_CHECK(fits(less, *this), "{} is less than {}", to_string(*this), to_string(less));
    cpu -= less.cpu;
    gpu -= less.gpu;
    memory -= less.memory;
    for (const auto& c : less.custom) set(c.name, of(c.name) - c.value);
    return *this;
}

SKEIN_INLINE bool fits(const resources& need, const resources& have) noexcept {
    if (need.cpu > have.cpu || need.gpu > have.gpu || need.memory > have.memory) return false;
    return std::all_of(need.custom.begin(), need.custom.end(),
                       [&](const custom_resource& c) { return c.value <= have.of(c.name); });
}

SKEIN_INLINE result<resources> parse_resources(std::string_view text,
                                               const resource_limits& limits) {
    resources r;
    if (text.empty()) return r;
    if (text.size() > limits.text)
        return error(errc::too_large, fmt::format("a list of resources of {} bytes, more than {}",
                                                  text.size(), limits.text));
    const auto where = fmt::format("resources \"{}\"", detail::shown(text));
    std::vector<std::string_view> seen;
    for (std::size_t begin = 0; begin <= text.size();) {
        const auto comma = std::min(text.find(',', begin), text.size());
        const auto part = text.substr(begin, comma - begin);
        const auto name = part.substr(0, part.find('='));
        if (std::find(seen.begin(), seen.end(), name) != seen.end())
            return error(errc::invalid_argument,
                         fmt::format("{} is there twice", detail::shown(name)))
                .with_where(where);
        seen.push_back(name);
        if (auto read = detail::read_resource(part, r, limits); !read) {
            auto why = read.error();
            return std::move(why).with_where(where);
        }
        begin = comma + 1;
    }
    return r;
}

SKEIN_INLINE std::string to_string(amount a) {
    const auto raw = a.in_steps();
    const auto size = static_cast<std::uint64_t>(raw < 0 ? -raw : raw);
    auto s = fmt::format("{}{}", raw < 0 ? "-" : "", size / amount::steps);
    if (const auto part = size % amount::steps; part != 0) {
        s += fmt::format(".{:04}", part);
        while (s.back() == '0') s.pop_back();
    }
    return s;
}

SKEIN_INLINE std::string to_string(const resources& r) {
    std::string s;
    const auto append = [&s](std::string_view name, const std::string& value) {
        if (!s.empty()) s += ',';
        s += fmt::format("{}={}", name, value);
    };
    if (r.cpu) append("cpu", to_string(r.cpu));
    if (r.gpu) append("gpu", to_string(r.gpu));
    if (r.memory != 0) {
        for (const auto& u : detail::memory_units) {
            const bool binary = u.name.size() == 3 || u.bytes == 1;
            if (!binary || r.memory % u.bytes != 0) continue;
            append("memory", fmt::format("{}{}", r.memory / u.bytes, u.name));
            break;
        }
    }
    for (const auto& c : r.custom) append(c.name, to_string(c.value));
    return s;
}

SKEIN_INLINE std::string to_string(gpu_set gpus) {
    std::string s;
    for (int i = 0; i < gpu_set::most; ++i)
        if (gpus.has(i)) s += fmt::format("{}{}", s.empty() ? "" : ",", i);
    return s;
}

namespace detail {
/// Amounts that came as numbers, not as text, must lie in the same bounds.
inline result<void> check_range(const resources& r) {
    const auto in_range = [](amount a) {
        return a >= amount{} && a <= amount::of_steps(amount::most * amount::steps);
    };
    const bool ok = in_range(r.cpu) && in_range(r.gpu) && r.memory <= resource_limits{}.memory &&
                    r.custom.size() <= resource_limits{}.custom &&
                    std::all_of(r.custom.begin(), r.custom.end(),
                                [&](const custom_resource& c) { return in_range(c.value); });
    if (ok) return {};
    return error(errc::invalid_argument, fmt::format("amounts out of range: {}", to_string(r)))
        .with_hint(fmt::format("0 to {} of each, memory up to {} bytes, {} custom resources",
                               amount::most, resource_limits{}.memory, resource_limits{}.custom));
}
} // namespace detail

SKEIN_INLINE result<void> check_demand(const resources& need) {
    if (auto range = detail::check_range(need); !range) return range;
    if (need.gpu > amount(1) && !need.gpu.is_whole())
        return error(errc::invalid_argument,
                     fmt::format("asks for gpu={}: a share of a gpu lies on one gpu",
                                 to_string(need.gpu)))
            .with_hint("ask for a fraction up to 1, or for whole gpus");
    return {};
}

SKEIN_INLINE result<void> check_total(const resources& total) {
    if (auto range = detail::check_range(total); !range) return range;
    if (!total.gpu.is_whole() || total.gpu > amount(gpu_set::most))
        return error(errc::invalid_argument, fmt::format("has gpu={}", to_string(total.gpu)))
            .with_hint(fmt::format("a place has whole gpus, at most {}", gpu_set::most));
    return {};
}

} // namespace skein::rt

// ======== skein/rt/run.hpp
// run: a main() that is a driver with its own local cluster, and, started again by itself, a worker.
//
//     skein::task<int> app();
//     int main(int argc, char** argv) { return skein::run(argc, argv, app); }
//
// Workers start with the first remote call: --workers N, or SKEIN_WORKERS=N, or one per core. With --address A, or
// SKEIN_ADDRESS=A, they are started on the nodes of the cluster whose head is at A (cluster/program.hpp). The exit
// code is the app's; 1 for an error (printed to stderr), 2 for a wrong command line, 130 and 143 when
// SIGINT or SIGTERM stopped it: the app is cancelled, workers leave, a second signal ends it at once.


#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein {

/// Defaults of run(); flags and environment win.
struct run_options {
    int workers = 0; ///< 0: one per core
    rt::local_workers_options processes;
};

namespace rt::detail {

template <class T>
task<int> as_exit_code(task<T> work) {
    if constexpr (std::is_void_v<T>) {
        co_await work;
        co_return exit_code::done;
    } else {
        co_return co_await work;
    }
}

template <class R>
consteval bool check_app_result() {
    using value = typename unwrap_task<R>::type;
    constexpr bool is_app = unwrap_task<R>::is_coroutine &&
                            (std::is_void_v<value> || std::is_convertible_v<value, int>);
    static_assert(is_app, "skein::run: app must return skein::task<int> or skein::task<void>, as a "
                          "coroutine does: write co_return instead of return");
    return is_app;
}

/// An app as the driver sees it: what main's caller wrote, and what is left of its command line.
struct any_app {
    unique_function<task<int>(std::vector<std::string>)> start;
    bool takes_nothing = false; ///< then skein's own flags are all there are
};

/// Calls the app with what it takes: nothing, its arguments as strings, or argc and argv.
template <class App>
any_app make_app(App app, int argc, char** argv) {
    if constexpr (std::is_invocable_v<App&>) {
        if constexpr (check_app_result<std::invoke_result_t<App&>>())
            return {[app = std::move(app)](std::vector<std::string>) mutable {
                        return as_exit_code(app());
                    },
                    true};
    } else if constexpr (std::is_invocable_v<App&, std::vector<std::string>>) {
        if constexpr (check_app_result<std::invoke_result_t<App&, std::vector<std::string>>>())
            return {[app = std::move(app)](std::vector<std::string> rest) mutable {
                return as_exit_code(app(std::move(rest)));
            }};
    } else if constexpr (std::is_invocable_v<App&, int, char**>) {
        if constexpr (check_app_result<std::invoke_result_t<App&, int, char**>>())
            return {[app = std::move(app), argc, argv](std::vector<std::string>) mutable {
                return as_exit_code(app(argc, argv));
            }};
    } else {
        static_assert(
            std::is_invocable_v<App&, int, char**>,
            "skein::run: app must be callable with nothing, with std::vector<std::string> (its "
            "arguments), or with (int argc, char** argv)");
    }
    return {}; // a static_assert has said why
}

/// run() for every app.
[[nodiscard]] int run_app(int argc, char** argv, any_app app, run_options how);

} // namespace rt::detail

/// Runs app as a driver, or this process as one of its workers. Call it from main and return its result.
///   app     task<int> or task<void>, from (), (std::vector<std::string>) or (int, char**); flags that
///           belong to skein (--workers, --address, --head, --join) are taken out of the vector. An app from () has --help.
/// In a worker it does not return: the process leaves with its driver, and nothing after run() happens
/// there. A program may call run() again after it; the workers of the second run start like all others,
/// at the top of main.
template <class App>
[[nodiscard]] int run(int argc, char** argv, App app, run_options how = {}) {
    auto any = rt::detail::make_app(std::move(app), argc, argv);
    return rt::detail::run_app(argc, argv, std::move(any), std::move(how));
}

} // namespace skein


// ======== skein/rt/detail/run.ipp
// The bodies of rt/run.hpp: the driver's life around its app.


// ======== skein/rt/standard_files.hpp
// A program may be started with its standard input, output or error closed (`prog >&-`, some launchers
// and cron). The next file or socket it opens then gets that number, and what it prints goes into it.
//
//     skein::rt::open_standard_files();   // first thing in main; skein::run does it


namespace skein::rt {

/// Opens /dev/null in the place of each of the descriptors 0, 1 and 2 that is closed. Others stay as they
/// are. Call it before anything else is opened and before there are threads. Never throws; where there is
/// no /dev/null the place stays closed.
void open_standard_files() noexcept;

} // namespace skein::rt


// ======== skein/rt/detail/standard_files.ipp
// The body of rt/standard_files.hpp.

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace skein::rt {

SKEIN_INLINE void open_standard_files() noexcept {
    const int saved = errno;
    for (int fd = 0; fd < 3; ++fd) {
        if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        const int got = ::open("/dev/null", O_RDWR); // the lowest number that is free: fd
        if (got > fd) ::close(got);
    }
    errno = saved;
}

} // namespace skein::rt


// ======== skein/rt/detail/run.ipp, continued
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::rt::detail {

/// Watches for the first stop signal and cancels the app.
SKEIN_INLINE task<void> watch_signals(net::real_loop* loop, const stop_signals* signals,
                                      cancel_source stop, int* which) {
    auto readable = net::wait_readable(*loop, signals->fd());
    co_await readable;
    *which = signals->which();
    stop.request();
}

/// What is left of the command line after skein's own flags.
struct command_line {
    std::vector<std::string> rest;
    std::optional<int> workers;
    cluster_flags cluster;
};

SKEIN_INLINE int parse_count(std::string_view flag, std::string_view text) {
    int n = 0;
    const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (bad != std::errc() || end != text.data() + text.size())
        throw error(errc::usage, fmt::format("{} {}: not a number", flag, text))
            .with_hint("e.g. --workers 4");
    if (n < 1)
        throw error(errc::usage, fmt::format("{} {}: at least one worker is needed", flag, text));
    if (n > 4096) throw error(errc::usage, fmt::format("{} {}: at most 4096 workers", flag, text));
    return n;
}

/// Goes along a command line.
class flag_reader {
public:
    explicit flag_reader(const std::vector<std::string_view>& all) : all_(all) {}
    [[nodiscard]] bool at_end() const { return at_ == all_.size(); }
    [[nodiscard]] std::string_view next() { return all_[at_++]; }
    /// Anywhere.
    [[nodiscard]] bool has(std::string_view flag) const {
        return std::any_of(all_.begin(), all_.end(), [&](std::string_view arg) {
            return arg == flag ||
                   (arg.starts_with(flag) && arg.substr(flag.size()).starts_with('='));
        });
    }
    [[nodiscard]] bool take(std::string_view flag) {
        if (all_[at_] != flag) return false;
        ++at_;
        return true;
    }
    /// The value in "--flag value" or "--flag=value", if that is next.
    [[nodiscard]] std::optional<std::string> value(std::string_view flag, std::string_view what) {
        const auto arg = all_[at_];
        if (!arg.starts_with(flag)) return std::nullopt;
        if (arg.size() > flag.size() && arg[flag.size()] == '=') {
            ++at_;
            return std::string(arg.substr(flag.size() + 1));
        }
        if (arg != flag) return std::nullopt;
        if (at_ + 1 == all_.size())
            throw error(errc::usage, fmt::format("{} needs {}", flag, what));
        at_ += 2;
        return std::string(all_[at_ - 1]);
    }

private:
    const std::vector<std::string_view>& all_;
    std::size_t at_ = 0;
};
inline constexpr std::optional<std::string> nothing;

SKEIN_INLINE command_line parse_command_line(int argc, char** argv) {
    command_line out;
    if (const char* text = std::getenv("SKEIN_WORKERS"); text != nullptr && *text != '\0')
        out.workers = parse_count("SKEIN_WORKERS", text);
    const std::vector<std::string_view> all(argv + std::min(argc, 1), argv + argc);
    flag_reader flags(all);
    // Names that an application may use itself are skein's beside one of the others only.
    const bool is_cluster = flags.has("--head") || flags.has("--join") || flags.has("--address") ||
                            std::getenv("SKEIN_ADDRESS") != nullptr;
    auto& cluster = out.cluster;
    while (!flags.at_end()) {
        if (const auto n = flags.value("--workers", "a number, e.g. --workers 4")) {
            out.workers = parse_count("--workers", *n);
        } else if (const auto a = flags.value("--address", "the head's, e.g. --address node-1")) {
            cluster.address = *a;
        } else if (const auto j = flags.value("--join", "the head's address, e.g. --join node-1")) {
            cluster.join = *j;
        } else if (flags.take("--head")) {
            cluster.head = true;
        } else if (const auto f = is_cluster ? flags.value("--token-file", "a file") : nothing) {
            cluster.token_file = *f;
        } else if (const auto l = is_cluster ? flags.value("--listen", "HOST:PORT") : nothing) {
            cluster.listen = *l;
        } else {
            out.rest.emplace_back(flags.next());
        }
    }
    cluster.workers = out.workers.value_or(0);
    if (argc > 0) cluster.program = argv[0];
    return out;
}

/// The head that the command line or the environment names; empty: there is none, workers are of this host.
SKEIN_INLINE std::string cluster_address(const cluster_flags& flags) {
    const auto* const roles = roles_of_program();
    if (roles != nullptr) return roles->address(flags);
    const char* variable = std::getenv("SKEIN_ADDRESS");
    if (flags.address.empty() && flags.join.empty() && !flags.head &&
        (variable == nullptr || *variable == '\0'))
        return {};
    throw error(errc::not_supported, "not supported: this program was compiled header-only without "
                                     "the cluster")
        .with_hint("include <skein/cluster/program.hpp> beside <skein/rt/run.hpp>, or link "
                   "skein::runtime");
}

/// Prints what skein itself understands; for an app that takes no arguments, that is all.
SKEIN_INLINE int print_usage(std::string_view program) {
    program.remove_prefix(std::min(program.rfind('/') + 1, program.size()));
    fmt::print(
        "usage: {} [--workers N] [--address A | --head | --join A]\n\n"
        "  --workers N       worker processes (default: SKEIN_WORKERS, else one per core)\n"
        "  --address A       run on the cluster whose head is at A (default: SKEIN_ADDRESS,\n"
        "                    else workers of this host)\n"
        "  --head            be the head of a cluster; --listen HOST:PORT for other hosts\n"
        "  --join A          be a node of the cluster whose head is at A\n"
        "  --token-file F    the cluster's token (default: SKEIN_TOKEN, SKEIN_TOKEN_FILE, else\n"
        "                    ~/.local/state/skein/token)\n"
        "  --help            this text\n",
        program);
    return exit_code::done;
}

/// The driver: the app under its signals, then everything else in order.
SKEIN_INLINE task<int> drive(net::real_loop* loop, runtime* self, worker_source* workers,
                             task<int> app, int* stopped_by) {
    stop_signals signals;
    cancel_source stop;
    scope services;
    services.spawn(watch_signals(loop, &signals, stop, stopped_by));
    self->on_first_call([&services, workers] { services.spawn(workers->serve()); });

    int code = exit_code::failed;
    std::exception_ptr failure;
    try {
        auto guarded = with_cancel(stop.token(), std::move(app));
        code = co_await guarded;
    } catch (...) {
        failure = std::current_exception();
    }
    workers->stop();
    auto goodbye = self->close();
    co_await goodbye;
    services.cancel();
    try {
        auto joined = services.join();
        co_await joined;
    } catch (const error& e) {
        if (!failure && e.code() != errc::cancelled) failure = std::current_exception();
    }
    if (failure) std::rethrow_exception(failure);
    co_return code;
}

/// Tells the exception that is being handled, as the last line of a program; gives its exit code.
SKEIN_INLINE int tell_failure(int stopped_by) {
    std::fflush(stdout);
    try {
        throw;
    } catch (const error& e) {
        if (stopped_by != 0 && e.code() == errc::cancelled) {
            fmt::print(stderr, "stopped by {}\n", signal_name(stopped_by));
            return 128 + stopped_by;
        }
        fmt::print(stderr, "error: {}\n", e.what());
        return e.code() == errc::usage ? exit_code::usage : exit_code::failed;
    } catch (const std::exception& e) {
        fmt::print(stderr, "error: {}\n", e.what());
    } catch (...) {
        fmt::print(stderr, "error: the app threw something that is not a std::exception\n");
    }
    return exit_code::failed;
}

SKEIN_INLINE int run_app(int argc, char** argv, any_app app, run_options how) {
    open_standard_files();
    // A task of a worker may be a driver of its own: it has a runtime.
    if (is_worker() && runtime::try_current() == nullptr) live_as_worker();

    int stopped_by = 0;
    try {
        auto line = parse_command_line(argc, argv);
        if (app.takes_nothing && !line.rest.empty()) { // others have a --help of their own
            if (line.rest.front() == "--help" || line.rest.front() == "-h")
                return print_usage(argv[0]);
            throw error(errc::usage, fmt::format("unknown argument {}", line.rest.front()))
                .with_hint("this program takes skein's flags only; see --help");
        }
        const auto head = cluster_address(line.cluster);
        if (line.cluster.head) return roles_of_program()->head(line.cluster);
        if (!line.cluster.join.empty()) return roles_of_program()->join(line.cluster);
        how.processes.count = line.workers.value_or(how.workers);
        if (argc > 0) how.processes.program = argv[0];
        net::real_loop loop;
        runtime_options who;
        who.host = host_name();
        who.pid = ::getpid();
        runtime self(who);
        const runtime::use current(self);
        net::real_network network(loop);
        local_children children(loop);
        std::unique_ptr<worker_source> workers;
        if (head.empty()) {
            workers = std::make_unique<local_workers>(loop, network, children, self, how.processes);
        } else {
            workers = roles_of_program()->workers(loop, network, self, line.cluster);
        }
        auto work = app.start(std::move(line.rest));
        return loop.run(drive(&loop, &self, workers.get(), std::move(work), &stopped_by));
    } catch (...) {
        return tell_failure(stopped_by);
    }
}

} // namespace skein::rt::detail

// ======== skein/rt/runtime_context.hpp
// runtime_context(): where the code that asks runs, as which call, and how long it may take.
//
//     row load(int shard) {
//         const auto here = skein::runtime_context();
//         logging::info("load", fmt::format("call {} on {}", here.call, here.process));
//         ...


#include <cstdint>
#include <optional>
#include <string>

namespace skein {

/// What a function that runs on a worker, or a task of the driver, can know of itself.
struct runtime_info {
    std::string process; ///< "driver", "worker-2"
    std::string host;
    std::int64_t pid = 0;
    std::string function; ///< "app::load(int)"; empty in tasks of the driver
    call_id call;         ///< unique over all processes; none in tasks of the driver
    call_id parent;       ///< the call that made this one; none if that was no call
    call_id trace;        ///< the first call of the tree that this one belongs to
    actor_id actor;       ///< in methods and constructors
    /// What is left of its deadline, or of the call's that made it; calls made now end by then, too.
    std::optional<duration> time_left;
};

/// Of the call or task that runs now.
///   errors  not_found: no skein runtime on this thread
[[nodiscard]] runtime_info runtime_context();

} // namespace skein


// ======== skein/rt/detail/runtime_context.ipp
// The body of rt/runtime_context.hpp.


#include <algorithm>

namespace skein {

SKEIN_INLINE runtime_info runtime_context() {
    const auto* here = rt::runtime::try_current();
    if (here == nullptr)
        throw error(errc::not_found, "no skein runtime on this thread")
            .with_hint("ask inside skein::run, in a task or in a function that runs on a worker");
    runtime_info out;
    out.process = here->name().name;
    out.host = here->name().host;
    out.pid = here->name().pid;
    const auto* context = rt::detail::call_context::current();
    if (context == nullptr || !context->is_call()) return out;
    out.function = context->fn->name;
    out.call = context->who.id;
    out.parent = context->who.parent;
    out.trace = context->who.trace;
    out.actor = context->actor;
    if (context->who.until != time_point::max())
        out.time_left =
            std::max(duration::zero(), context->who.until - loop::current().exact_now());
    return out;
}

} // namespace skein

// ======== skein/rt/scheduler.hpp
// scheduler: which request gets room on which place. Pure code: no loop, no clock, no I/O, no randomness. The
// same calls give the same grants, so that a driver, an agent, a head, a simulation and a test use one object.
//
//     rt::scheduler s;
//     s.add_place(rt::place_id(1), "worker-1", rt::parse_resources("cpu=2").value());
//     rt::request r;
//     r.demand.cpu = 1;
//     r.tag = my_number;                          // comes back with the grant
//     const rt::request_id id = s.submit(r).value();
//     std::vector<rt::grant> granted;
//     s.take_grants(granted);                     // once per turn: what was decided since
//     s.release(id);                              // the work has ended
//
// Requests wait in queues, one for each job, demand and constraint: what does not fit holds up its own queue
// only. Jobs share by weight; what waited for too many grants gets a place reserved. A request that waits for
// others gives its cpus back meanwhile. docs/design/0006-scheduler.md has the rules and their reasons.


#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace skein::rt {

namespace detail {
struct schedule_books;
}

/// A place where requests run: a worker, a host, another scheduler. The caller chooses the number.
using place_id = strong_id<struct place_tag>;
/// A request of one scheduler, from submit() to release(); never given twice.
using request_id = strong_id<struct request_tag>;
/// A placement group of one scheduler.
using placement_group_id = strong_id<struct placement_group_tag>;

/// Which of the places with enough room is taken.
enum class placement : std::uint8_t {
    pack, ///< the first, in the order in which places came: later ones stay whole for large demands
    spread ///< the one with most room
};

/// What a scheduler is made with.
struct scheduler_options {
    placement policy = placement::pack;
    /// Grants to others that may pass a request which does not fit, before a place is kept free for it. Never
    /// less than the number of places.
    std::uint32_t patience = 256;
};

/// Where a request may go. Has no part in a job's fair share.
class constraint {
public:
    constraint() = default; ///< anywhere
    /// This place only.
    [[nodiscard]] static constraint on(place_id place);
    /// Places with this label.
    [[nodiscard]] static constraint labelled(std::string label);
    /// Anywhere, the place with most room first, whatever the scheduler's policy is.
    [[nodiscard]] static constraint spread();
    /// The bundle of a group; -1: any bundle of it.
    [[nodiscard]] static constraint in(placement_group_id group, int bundle = -1);
    /// The same without these places; at most 64.
    [[nodiscard]] constraint avoiding(std::vector<place_id> places) const;

    friend bool operator==(const constraint&, const constraint&) = default;
    friend auto operator<=>(const constraint&, const constraint&) = default;

private:
    friend struct detail::schedule_books;
    enum class kind : std::uint8_t { anywhere, place, label, group };
    kind kind_ = kind::anywhere;
    bool spread_ = false;
    int bundle_ = -1;
    std::uint64_t number_ = 0; ///< of the place or group
    std::string label_;
    std::vector<place_id> avoid_; ///< sorted
};

/// What submit() takes.
struct request {
    job_id job;       ///< whose share it counts for
    resources demand; ///< nothing at all is granted at once, on the place with fewest grants
    rt::constraint where;
    std::uint64_t tag = 0; ///< the caller's own; comes back with everything said about the request
    bool for_life = false; ///< an actor: nobody may count on its end
    /// What no place could ever hold is refused. Otherwise it waits until one comes that can.
    bool fail_if_infeasible = false;
};

/// A request has got room, or goes on after wait_end().
struct grant {
    request_id id;
    std::uint64_t tag = 0;
    place_id place;
    gpu_set gpus;         ///< those it may use, by their index on the place
    int bundle = -1;      ///< of its group, if it asked for one
    bool resumed = false; ///< it has waited and has its cpus again: nothing new starts
};

/// A request that held room where there is none any more. Its id is gone.
struct evicted {
    request_id id;
    std::uint64_t tag = 0;
};

/// What is rare.
struct notice {
    enum class kind : std::uint8_t {
        refused,      ///< the request is gone: it cannot be held, or its group was removed
        infeasible,   ///< the request waits for a place that could hold it; said once for its queue
        group_placed, ///< all bundles have places
        group_infeasible, ///< the group waits: no set of places could hold it
        group_broken      ///< a place with bundles has gone; they are placed again
    };
    kind what = kind::refused;
    request_id id;         ///< of a request
    std::uint64_t tag = 0; ///< of the request or group
    placement_group_id group;
    std::vector<place_id> bundles;         ///< group_placed: the place of each
    error why{errc::unknown, "no reason"}; ///< what is missing, and where most of it is
};

/// How the bundles of a placement group are spread over places.
enum class group_strategy : std::uint8_t {
    pack,         ///< few places
    spread,       ///< many places
    strict_pack,  ///< one place
    strict_spread ///< each bundle on a place of its own
};

/// Room that is taken together or not at all, for requests to come.
struct group_request {
    job_id job;
    group_strategy strategy = group_strategy::pack;
    std::vector<resources> bundles; ///< 1 to 4096
    std::uint64_t tag = 0;
    bool fail_if_infeasible = false;
};

/// Decides. Not thread-safe. Errors of outside input come as results; ids that are unknown or gone are answered
/// with false, for a release may cross an eviction.
class scheduler {
public:
    explicit scheduler(scheduler_options options = {});
    scheduler(scheduler&&) noexcept;
    scheduler& operator=(scheduler&&) noexcept;
    ~scheduler();

    /// name: as messages say it, "worker-3". Labels are compared whole: "zone=a".
    result<void> add_place(place_id id, std::string name, const resources& total,
                           std::vector<std::string> labels = {});
    /// Gives back the requests that held something there; bundles there are placed again.
    std::vector<evicted> remove_place(place_id id);
    /// Nothing new goes there, nor into bundles there; what runs goes on. False if it is unknown.
    bool drain(place_id id, bool on = true);

    /// A job has twice the share of one with half its weight: 1 to 1000; 1 if nothing is said.
    void set_weight(job_id job, std::uint32_t weight);
    /// Forgets the job's queued requests and its groups, and gives back those that held room in these. What it
    /// holds elsewhere it keeps until it is released: stop that first, then say this.
    std::vector<evicted> remove_job(job_id job);

    /// Queues a request; a grant, a notice or cancel() ends that.
    result<request_id> submit(const request& r);
    /// Books a request that runs already, on a place that held it before this scheduler knew of it. It passes
    /// all that wait: they could not have had the room. No grant comes for it; release() ends it.
    ///   gpus    those it uses there
    ///   errors  not_found (the place), exhausted (so much is not free there), those of submit()
    result<request_id> adopt(const request& r, place_id at, gpu_set gpus = {});
    /// Takes a queued request back. False if it is not queued (any more): then release() it.
    bool cancel(request_id id);
    /// Gives back what a granted request holds. False if it holds nothing (any more).
    bool release(request_id id);
    /// The granted request waits for others: its cpus are free meanwhile, and nothing else. False if it is
    /// not granted, or waits already.
    bool wait_begin(request_id id);
    /// It could go on. True: it has its cpus and goes on now. False: a grant with `resumed` comes.
    bool wait_end(request_id id);

    /// Asks for room for all bundles. Requests name the group from now on and wait for it.
    result<placement_group_id> create_group(group_request g);
    /// Gives its room back, and the requests that held some of it; those queued for it are refused.
    std::vector<evicted> remove_group(placement_group_id id);

    /// Appends what can be granted now, at most `limit`; returns how many. Order: those that resume, groups,
    /// then by fair share.
    std::size_t take_grants(std::vector<grant>& into, std::size_t limit = SIZE_MAX);
    /// Appends the notices; complete only after take_grants().
    void take_notices(std::vector<notice>& into);

    // For listings and tests.

    struct totals {
        std::size_t places = 0, queued = 0, granted = 0; ///< granted: also those that wait
        std::size_t waiting = 0,
                    resuming = 0; ///< between wait_begin() and wait_end(), and after it
        std::size_t queues = 0, groups = 0;
        std::uint64_t grants = 0, reservations = 0; ///< since it was made
        std::size_t bytes = 0;                      ///< of the table of requests
        /// All that hold room wait, and nothing queued fits beside them: without a new place nothing goes on.
        bool stalled = false;
    };
    [[nodiscard]] totals stats() const;

    struct queue_info {
        job_id job;
        resources demand;
        std::string where; ///< the constraint, for people; "" anywhere
        std::size_t queued = 0, granted = 0;
        std::string why; ///< why its first one waits; "" if none does
    };
    [[nodiscard]] std::vector<queue_info> queues() const;

    struct place_info {
        place_id id;
        std::string name;
        resources total, used; ///< used.cpu may be more than total.cpu, see wait_end()
        std::size_t granted = 0;
        bool draining = false;
        bool reserved = false; ///< kept free for one that waited long
    };
    [[nodiscard]] std::vector<place_info> places() const;

    struct group_info {
        placement_group_id id;
        bool placed = false;
        std::vector<place_id> bundles; ///< their places; none: not placed
    };
    [[nodiscard]] std::vector<group_info> groups() const;

    /// What keeps a request: "waits for cpu=2: worker-1 has most free, cpu=1". "" if it is unknown.
    [[nodiscard]] std::string why(request_id id) const;

private:
    std::unique_ptr<detail::schedule_books> books_;
};

} // namespace skein::rt


// ======== skein/rt/detail/scheduler.ipp
// The bodies of rt/scheduler.hpp: requests, from submit() to release(), and the queues they wait in.


// ======== skein/rt/detail/scheduler.hpp
// The books of rt/scheduler.hpp.
//
// A queue holds the requests of one job, demand and constraint. What decides where they fit, demand and
// constraint, is a class, which queues of several jobs share. Queues with requests are
//   ready       in their job's list: their first request may fit somewhere;
//   blocked     in their class's list: it fitted nowhere, and no place has grown since that would do;
//   infeasible  no place could hold it even if it were empty.
// A bundle of a placement group is a place, too: it lies on its host and is found through its group only.


// ======== skein/rt/detail/place_tree.hpp
// Finds a place with enough room without looking at all of them: a binary tree over the places, whose inner nodes
// have the largest key of each dimension below them.
//
// With one kind of need a search goes straight down. With several, a node may promise what none of its
// places holds alone (one has the cpus, another the gpus); the search then turns back, at worst past every place.


// ======== skein/rt/detail/room.hpp
// What is free on one place, as numbers that a request's needs are compared with one by one.
//
// A resource is a number here ("dimension"). Gpus are two: gpus that are wholly free, and the largest share
// that is free on one gpu. So "two whole gpus" and "a third of one" are comparisons like all others.


#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace skein::rt::detail {

inline constexpr std::uint32_t dim_order =
    0; ///< minus the number of grants: always there while a place is open
inline constexpr std::uint32_t dim_cpu = 1; ///< in steps; below zero: more run than there are cpus
inline constexpr std::uint32_t dim_memory = 2; ///< in bytes
inline constexpr std::uint32_t dim_gpu = 3;    ///< wholly free gpus, in steps
inline constexpr std::uint32_t dim_share = 4;  ///< the largest free share of one gpu, in steps
inline constexpr std::uint32_t dim_custom = 5; ///< the first custom resource, in steps

/// Less than any need: the key of a place that takes nothing.
inline constexpr std::int64_t closed_key = INT64_MIN;

/// At least so much of a dimension.
struct need {
    std::uint32_t dim = 0;
    std::int64_t least = 0;
    friend bool operator==(const need&, const need&) = default;
};
/// In the order of dimensions, none zero.
using needs = std::vector<need>;

[[nodiscard]] inline std::int64_t need_of(const needs& all, std::uint32_t dim) noexcept {
    for (const auto& n : all)
        if (n.dim == dim) return n.least;
    return 0;
}

/// Amounts by dimension. The first eight lie in the object: a place is looked at more often than its numbers are.
class key_list {
public:
    [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
    void resize(std::uint32_t n) {
        size_ = n;
        if (n > few_.size()) more_.resize(n - few_.size());
    }
    [[nodiscard]] std::int64_t& operator[](std::uint32_t d) noexcept {
        return d < few_.size() ? few_[d] : more_[d - few_.size()];
    }
    [[nodiscard]] std::int64_t operator[](std::uint32_t d) const noexcept {
        return d < few_.size() ? few_[d] : more_[d - few_.size()];
    }

private:
    std::uint32_t size_ = 0;
    std::array<std::int64_t, 8> few_{};
    std::vector<std::int64_t> more_;
};

/// One gpu of a place.
struct gpu_room {
    std::uint8_t index = 0;  ///< on its host
    std::uint16_t free = 0;  ///< in steps
    std::uint16_t total = 0; ///< less than a whole one in a bundle that asked for a share
};

/// What is free, and taking and giving of it.
class room {
public:
    room() = default;

    /// The room of a place with these amounts; gpus has its gpus.
    room(const needs& total, gpu_set gpus) {
        keys_.resize(dim_custom);
        for (const auto& n : total) {
            if (n.dim == UINT32_MAX) continue; // a resource that no place has
            if (n.dim >= keys_.size()) keys_.resize(n.dim + 1);
            if (n.dim != dim_gpu && n.dim != dim_share) keys_[n.dim] = n.least;
        }
        const auto share = need_of(total, dim_share);
        const auto each = static_cast<std::uint16_t>(share != 0 ? share : amount::steps);
        for (int i = 0; i < gpu_set::most; ++i)
            if (gpus.has(i)) gpus_.push_back({static_cast<std::uint8_t>(i), each, each});
        count_gpus();
    }

    [[nodiscard]] std::int64_t at(std::uint32_t dim) const noexcept {
        return dim < keys_.size() ? keys_[dim] : 0;
    }
    [[nodiscard]] const key_list& keys() const noexcept { return keys_; }

    [[nodiscard]] bool fits(const needs& all) const noexcept {
        return std::all_of(all.begin(), all.end(),
                           [this](const need& n) { return at(n.dim) >= n.least; });
    }

    /// Takes the needs, which must fit; the gpus it took. A share is taken from the gpu on which it leaves least.
    gpu_set take(const needs& all) {
        gpu_set taken;
        --keys_[dim_order];
        for (const auto& n : all) {
            if (n.dim == dim_gpu) {
                taken = take_whole(n.least / amount::steps);
            } else if (n.dim == dim_share) {
                taken = take_share(n.least);
            } else if (n.dim != dim_order) {
                keys_[n.dim] -= n.least;
            }
        }
        return taken;
    }
    /// Takes the needs with these gpus. False, and nothing is taken: so much, or one of them, is not free.
    [[nodiscard]] bool take_these(const needs& all, gpu_set gpus) {
        const auto whole = need_of(all, dim_gpu), share = need_of(all, dim_share);
        std::int64_t count = 0, free = 0;
        for (const auto& g : gpus_) {
            if (!gpus.has(g.index)) continue;
            ++count;
            free += whole != 0 ? g.free == amount::steps : g.free >= share;
        }
        const std::int64_t wanted = whole != 0 ? whole / amount::steps : share != 0 ? 1 : 0;
        if (!fits(all) || count != wanted || free != wanted) return false;
        --keys_[dim_order];
        for (const auto& n : all)
            if (n.dim != dim_gpu && n.dim != dim_share && n.dim != dim_order)
                keys_[n.dim] -= n.least;
        for (auto& g : gpus_)
            if (gpus.has(g.index))
                g.free = static_cast<std::uint16_t>(whole != 0 ? 0 : g.free - share);
        count_gpus();
        return true;
    }
    /// What take() took; with_cpus = false: but for the cpus, which were given before.
    void give(const needs& all, gpu_set gpus, bool with_cpus = true) noexcept {
        ++keys_[dim_order];
        for (const auto& n : all) {
            if (n.dim == dim_gpu || n.dim == dim_share) {
                const auto each = n.dim == dim_share ? n.least : amount::steps;
                for (auto& g : gpus_)
                    if (gpus.has(g.index)) g.free = static_cast<std::uint16_t>(g.free + each);
                count_gpus();
            } else if (n.dim != dim_order && (with_cpus || n.dim != dim_cpu)) {
                keys_[n.dim] += n.least;
            }
        }
    }
    /// Cpus alone: of one that waits, or goes on.
    void add_cpus(std::int64_t n) noexcept { keys_[dim_cpu] += n; }

    /// Less room than there is, for plans: what is kept free for somebody else.
    void withhold(const needs& all) noexcept {
        for (const auto& n : all) {
            if (n.dim == dim_gpu || n.dim == dim_share) {
                gpus_.clear();
                count_gpus();
            } else if (n.dim < keys_.size() && n.dim != dim_order) {
                keys_[n.dim] -= n.least;
            }
        }
    }
    /// Steps of all gpus that are taken.
    [[nodiscard]] std::int64_t gpus_used() const noexcept {
        std::int64_t used = 0;
        for (const auto& g : gpus_) used += g.total - g.free;
        return used;
    }

private:
    gpu_set take_whole(std::int64_t count) noexcept {
        gpu_set taken;
        for (auto& g : gpus_) {
            if (count == 0) break;
            if (g.free != amount::steps) continue;
            g.free = 0;
            taken.insert(g.index);
            --count;
        }
        count_gpus();
        return taken;
    }
    gpu_set take_share(std::int64_t share) noexcept {
        gpu_room* best = nullptr;
        for (auto& g : gpus_)
            if (g.free >= share && (best == nullptr || g.free < best->free)) best = &g;
        gpu_set taken;
        if (best == nullptr) return taken;
        best->free = static_cast<std::uint16_t>(best->free - share);
        taken.insert(best->index);
        count_gpus();
        return taken;
    }
    void count_gpus() noexcept {
        keys_[dim_gpu] = keys_[dim_share] = 0;
        for (const auto& g : gpus_) {
            if (g.free == amount::steps) keys_[dim_gpu] += amount::steps;
            keys_[dim_share] = std::max<std::int64_t>(keys_[dim_share], g.free);
        }
    }

    key_list keys_;
    std::vector<gpu_room> gpus_;
};

} // namespace skein::rt::detail


// ======== skein/rt/detail/place_tree.hpp, continued
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace skein::rt::detail {

inline constexpr std::uint32_t no_index = UINT32_MAX;

class place_tree {
public:
    /// Room for so many leaves of so many dimensions; keys stay, new leaves are closed.
    void reserve(std::uint32_t leaves, std::uint32_t dims) {
        const auto wanted = std::max(leaves_, std::bit_ceil(std::max(leaves, 2u)));
        if (wanted == leaves_ && dims <= dims_) return;
        place_tree bigger;
        bigger.leaves_ = wanted;
        bigger.dims_ = std::max(dims, dims_);
        bigger.keys_.assign(std::size_t{2} * wanted * bigger.dims_, closed_key);
        for (std::uint32_t leaf = 0; leaf < leaves_; ++leaf) {
            const auto* from = node(leaves_ + leaf);
            if (from[dim_order] == closed_key) continue;
            key_list keys;
            keys.resize(dims_);
            for (std::uint32_t d = 0; d < dims_; ++d) keys[d] = from[d];
            bigger.set(leaf, keys);
        }
        *this = std::move(bigger);
    }
    [[nodiscard]] std::uint32_t dims() const noexcept { return dims_; }

    /// Dimensions that are not in `keys` are zero.
    void set(std::uint32_t leaf, const key_list& keys) noexcept {
        for (std::uint32_t d = 0; d < dims_; ++d) change(leaf, d, d < keys.size() ? keys[d] : 0);
    }
    void close(std::uint32_t leaf) noexcept {
        for (std::uint32_t d = 0; d < dims_; ++d) change(leaf, d, closed_key);
    }

    /// Whether a leaf is open and has all needs.
    [[nodiscard]] bool fits(std::uint32_t leaf, const needs& all) const noexcept {
        return promises(leaves_ + leaf, all);
    }
    /// What a leaf has of a dimension; closed_key if it is closed.
    [[nodiscard]] std::int64_t at(std::uint32_t leaf, std::uint32_t dim) const noexcept {
        return dim < dims_ ? node(leaves_ + leaf)[dim] : 0;
    }

    /// The first leaf that has all needs and that accept(leaf) takes, else no_index.
    template <class Accept>
    [[nodiscard]] std::uint32_t first(const needs& all, Accept&& accept) const {
        return leaves_ == 0 ? no_index : first_below(1, all, accept);
    }
    /// One with the most of a dimension among them: the larger half first.
    template <class Accept>
    [[nodiscard]] std::uint32_t most(std::uint32_t dim, const needs& all, Accept&& accept) const {
        return leaves_ == 0 || dim >= dims_ ? no_index : most_below(1, dim, all, accept);
    }

private:
    [[nodiscard]] std::int64_t* node(std::uint32_t n) noexcept {
        return keys_.data() + std::size_t{n} * dims_;
    }
    [[nodiscard]] const std::int64_t* node(std::uint32_t n) const noexcept {
        return keys_.data() + std::size_t{n} * dims_;
    }
    /// Most changes concern one or two dimensions, and stop where another place has more.
    void change(std::uint32_t leaf, std::uint32_t d, std::int64_t key) noexcept {
        auto n = leaves_ + leaf;
        if (node(n)[d] == key) return;
        node(n)[d] = key;
        for (n /= 2; n >= 1; n /= 2) {
            const auto larger = std::max(node(2 * n)[d], node(2 * n + 1)[d]);
            if (node(n)[d] == larger) return;
            node(n)[d] = larger;
        }
    }
    [[nodiscard]] bool promises(std::uint32_t n, const needs& all) const noexcept {
        const auto* at = node(n);
        for (const auto& x : all)
            if (x.dim >= dims_ || at[x.dim] < x.least) return false;
        return !all.empty() || at[dim_order] != closed_key; // a need is more than closed_key
    }
    template <class Accept>
    [[nodiscard]] std::uint32_t first_below(std::uint32_t n, const needs& all,
                                            Accept& accept) const {
        if (!promises(n, all)) return no_index;
        if (n >= leaves_) return accept(n - leaves_) ? n - leaves_ : no_index;
        while (2 * n < leaves_ && !promises(2 * n, all)) { // without calls while there is one way
            n = 2 * n + 1;
            if (!promises(n, all)) return no_index;
        }
        const auto found = first_below(2 * n, all, accept);
        return found != no_index ? found : first_below(2 * n + 1, all, accept);
    }
    template <class Accept>
    [[nodiscard]] std::uint32_t most_below(std::uint32_t n, std::uint32_t dim, const needs& all,
                                           Accept& accept) const {
        if (!promises(n, all)) return no_index;
        if (n >= leaves_) return accept(n - leaves_) ? n - leaves_ : no_index;
        const auto larger = node(2 * n + 1)[dim] > node(2 * n)[dim] ? 2 * n + 1 : 2 * n;
        const auto found = most_below(larger, dim, all, accept);
        return found != no_index ? found : most_below(larger ^ 1u, dim, all, accept);
    }

    std::uint32_t leaves_ = 0, dims_ = 0;
    std::vector<std::int64_t> keys_; ///< node 1 is the root, leaves begin at node leaves_
};

} // namespace skein::rt::detail

// ======== skein/rt/detail/request_table.hpp
// The requests of a scheduler: 48 bytes each, in chunks that come and go, so that a million of them need no
// copy and leave nothing behind. A queue, and the requests that hold room on a place, are chains through them.


#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

namespace skein::rt::detail {

enum class request_state : std::uint8_t { free, queued, running, waiting, resuming };

struct request_entry {
    std::uint64_t tag = 0;
    std::uint64_t order = 0; ///< of its submission, in this scheduler
    std::uint64_t gpus = 0;
    std::uint32_t generation = 0;
    std::uint32_t queue = no_index;
    std::uint32_t next = no_index, prev = no_index; ///< in its queue, or among those on its place
    std::uint32_t place = no_index;
    request_state state = request_state::free;
    bool for_life = false;
};
static_assert(sizeof(request_entry) == 48);

class request_table {
public:
    [[nodiscard]] request_entry& operator[](std::uint32_t index) noexcept {
        return chunks_[index / per_chunk].entries[index % per_chunk];
    }
    [[nodiscard]] const request_entry& operator[](std::uint32_t index) const noexcept {
        return chunks_[index / per_chunk].entries[index % per_chunk];
    }

    /// An entry whose fields are those of a new one, but for its generation.
    [[nodiscard]] std::uint32_t take() {
        if (open_.empty()) add_chunk();
        const auto number = *open_.begin();
        auto& c = chunks_[number];
        if (!c.entries) fill(c);
        const auto at = c.first_free;
        auto& e = c.entries[at];
        c.first_free = e.next;
        if (++c.used == per_chunk) open_.erase(number);
        const auto generation = e.generation;
        e = {};
        e.generation = generation;
        ++size_;
        return number * per_chunk + at;
    }
    void free(std::uint32_t index) {
        const auto number = index / per_chunk;
        auto& c = chunks_[number];
        auto& e = c.entries[index % per_chunk];
        e.state = request_state::free;
        ++e.generation;
        c.last_generation = std::max(c.last_generation, e.generation);
        e.next = c.first_free;
        c.first_free = index % per_chunk;
        if (c.used-- == per_chunk) open_.insert(number);
        --size_;
        // The last empty chunk stays, or a lone request would allocate each time.
        if (c.used == 0 && number != *open_.begin()) c.entries.reset();
    }

    [[nodiscard]] std::uint64_t id(std::uint32_t index) const noexcept {
        return std::uint64_t{(*this)[index].generation} << 32 | index;
    }
    /// The entry of an id, no_index if it is gone or was none.
    [[nodiscard]] std::uint32_t find(std::uint64_t id) const noexcept {
        const auto index = static_cast<std::uint32_t>(id);
        const auto number = index / per_chunk;
        if (number >= chunks_.size() || !chunks_[number].entries) return no_index;
        const auto& e = (*this)[index];
        return e.state != request_state::free && e.generation == id >> 32 ? index : no_index;
    }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::size_t bytes() const noexcept {
        std::size_t n = chunks_.capacity() * sizeof(chunk);
        for (const auto& c : chunks_)
            if (c.entries) n += per_chunk * sizeof(request_entry);
        return n;
    }

private:
    static constexpr std::uint32_t per_chunk = 1024;
    struct chunk {
        std::unique_ptr<request_entry[]> entries;
        std::uint32_t used = 0, first_free = 0;
        std::uint32_t last_generation = 1; ///< ids begin above those that a dropped chunk gave
    };

    void add_chunk() {
        open_.insert(static_cast<std::uint32_t>(chunks_.size()));
        chunks_.emplace_back();
    }
    static void fill(chunk& c) {
        c.entries = std::make_unique<request_entry[]>(per_chunk);
        for (std::uint32_t i = 0; i < per_chunk; ++i) {
            c.entries[i].generation = c.last_generation;
            c.entries[i].next = i + 1 < per_chunk ? i + 1 : no_index;
        }
        c.first_free = 0;
    }

    std::vector<chunk> chunks_;
    std::set<std::uint32_t> open_; ///< chunks with a free entry
    std::size_t size_ = 0;
};

} // namespace skein::rt::detail


// ======== skein/rt/detail/scheduler.hpp, continued
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace skein::rt::detail {

/// Places among which a search goes: all, those with a label, the bundles of a group.
struct place_domain {
    place_tree now, ever;               ///< what is free for others, and what there is in all
    std::vector<std::uint32_t> members; ///< place of a leaf, or no_index
    std::vector<std::uint32_t> holes;
};

/// Room kept free for who waited long.
struct reservation {
    needs kept;
    std::uint32_t queue = no_index; ///< whose first request it is for
    std::uint64_t group = 0;        ///< or which group
    [[nodiscard]] bool exists() const noexcept { return queue != no_index || group != 0; }
};

/// What a decision looks at stands first.
struct place_record {
    bool alive = false, draining = false, grown = false;
    std::uint32_t host = no_index; ///< of a bundle
    int bundle = -1;
    std::uint32_t running = 0;      ///< granted, not for life, not waiting: ends or waits some time
    std::uint32_t running_cpus = 0; ///< those of them that hold cpus
    std::uint32_t first_held = no_index, held = 0;
    std::int64_t resuming_cpus = 0;
    place_id id;
    room now;
    /// With its leaf there, which says what new requests may take; the first: all places, or its group's.
    std::vector<std::pair<place_domain*, std::uint32_t>> in;
    reservation kept;
    std::vector<std::uint32_t> resuming;
    std::uint64_t group = 0;
    gpu_set gpus;
    needs total_needs;
    resources total;
    std::string name;
    std::vector<std::string> labels;
};

enum class queue_state : std::uint8_t { empty, ready, blocked, infeasible };

struct queue_record {
    std::uint32_t job = no_index, cls = no_index;
    bool fails = false; ///< what is infeasible is refused
    bool idles = false; ///< it is in the list of idle queues
    queue_state state = queue_state::empty;
    bool told = false; ///< that it is infeasible
    std::uint32_t first = no_index, last = no_index;
    std::uint32_t queued = 0, granted = 0;
    // How long its first request has been passed.
    bool ages = false;
    std::uint32_t older = no_index,
                  younger = no_index;  ///< neighbours in the list of those that age
    std::uint32_t chances = 0;         ///< times it fitted, and another job came first
    std::uint64_t since = 0;           ///< grants of all at the time
    std::uint32_t reserved = no_index; ///< the place that is kept for it
};

struct class_record {
    std::uint32_t shape = no_index, where = no_index;
    bool feasible = false;
    std::uint64_t checked = 0; ///< the version of the places when it was
    std::uint32_t queues = 0;
    std::vector<std::uint32_t> blocked;
};

struct shape_record {
    resources demand;
    needs all; ///< what a search compares
    std::int64_t cpu = 0;
    std::uint32_t main = dim_order; ///< where spreading looks for most room
    std::uint32_t classes = 0;
};

struct constraint_record {
    constraint where;
    std::unique_ptr<place_domain> labelled;
    std::uint32_t classes = 0;
};

struct job_record {
    job_id id;
    std::uint32_t weight = 1;
    std::uint64_t pass = 0, at = 0; ///< its charge, after so many turns
    std::uint64_t rate = 0;         ///< its charge per turn: its share by its weight
    std::vector<std::int64_t> used; ///< by dimension; shares of gpus count as gpus
    std::vector<std::uint32_t> ready;
    bool is_ready = false;
    std::size_t queued = 0;
};

struct group_record {
    struct bundle {
        resources demand;
        needs all;
        std::uint32_t place = no_index;
    };
    placement_group_id id;
    job_id job;
    std::uint32_t job_index = 0;
    group_strategy strategy = group_strategy::pack;
    std::uint64_t tag = 0, since = 0;
    bool fails = false, told = false, waits = true, reserved = false;
    std::vector<bundle> bundles;
    place_domain domain;
};

/// A place in a plan: a copy of its room from which bundles are taken on trial.
struct plan_room {
    std::uint32_t place = no_index;
    detail::room room;
    bool used = false;
};

struct schedule_books {
    explicit schedule_books(scheduler_options o) : options(o) {}

    scheduler_options options;
    std::vector<place_record> all_places;
    std::vector<std::uint32_t> free_places;
    std::unordered_map<place_id, std::uint32_t> place_of;
    place_domain everywhere;
    std::uint64_t places_version = 1, checked_version = 1;
    std::vector<std::uint32_t> grown;
    bool groups_may_fit = false;

    request_table requests;
    std::uint64_t submitted = 0;

    std::vector<queue_record> all_queues;
    std::vector<std::uint32_t> free_queues;
    std::deque<std::uint32_t> idle_queues;
    std::map<std::tuple<std::uint32_t, std::uint32_t, bool>, std::uint32_t> queue_of;
    std::uint32_t oldest = no_index, youngest = no_index;
    std::vector<std::uint32_t> reserved_queues;

    std::vector<class_record> classes;
    std::vector<std::uint32_t> free_classes, waiting_classes;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> class_of;
    std::vector<shape_record> shapes;
    std::vector<std::uint32_t> free_shapes;
    std::map<resources, std::uint32_t> shape_of;
    std::vector<constraint_record> constraints;
    std::vector<std::uint32_t> free_constraints;
    std::map<constraint, std::uint32_t> constraint_of;
    std::map<std::string, std::uint32_t, std::less<>> custom_dims;
    std::uint32_t dims = dim_custom;
    struct {
        std::uint32_t queue = no_index;
        request last;
    } recent; ///< where the last request went: most go where that went

    std::vector<job_record> jobs;
    std::vector<std::uint32_t> free_jobs;
    std::unordered_map<job_id, std::uint32_t> job_of;
    std::vector<std::uint32_t> ready_jobs;
    std::uint64_t virtual_time = 0;    ///< the largest charge at which a job was served
    std::vector<std::int64_t> cluster; ///< totals of all places, by dimension

    std::map<std::uint64_t, group_record> groups;
    std::uint64_t last_group = 0;

    std::vector<notice> notices;
    std::uint64_t grants = 0, turns = 0, reservations = 0; ///< turns: those that granted something
    std::size_t queued = 0, granted = 0, waiting = 0, resuming = 0, running = 0;

    // scheduler.ipp: requests and queues
    [[nodiscard]] needs needs_of(const resources& r);
    void number_shape(shape_record& s);
    [[nodiscard]] std::uint32_t intern_shape(const resources& demand);
    [[nodiscard]] std::uint32_t intern_constraint(const constraint& where);
    [[nodiscard]] std::uint32_t intern_class(const request& r);
    [[nodiscard]] std::uint32_t queue_for(const request& r);
    void drop_queue(std::uint32_t q);
    void drop_class(std::uint32_t c);
    void queue_is_idle(std::uint32_t q);
    [[nodiscard]] std::uint32_t job_for(job_id id);
    [[nodiscard]] result<void> check(const request& r) const;
    [[nodiscard]] result<request_id> submit(const request& r);
    [[nodiscard]] result<request_id> adopt(request r, place_id at, gpu_set gpus);
    void append(std::uint32_t q, std::uint32_t e);
    void unqueue(std::uint32_t e);
    bool cancel(request_id id);
    void hold(std::uint32_t e, std::uint32_t place, gpu_set gpus);
    void count_running(const request_entry& entry, int by);
    bool release(request_id id);
    void give_back(std::uint32_t e);
    void evict(std::uint32_t place, std::vector<evicted>& into);
    bool wait_begin(request_id id);
    bool wait_end(request_id id);
    [[nodiscard]] static bool may_resume(const place_record& p, std::int64_t cpu);
    void take_cpus_again(std::uint32_t e);
    void refuse(std::uint32_t q, const error& why);
    std::vector<evicted> remove_job(job_id id);

    // scheduler_places.ipp
    [[nodiscard]] result<void> add_place(place_id id, std::string name, const resources& total,
                                         std::vector<std::string> labels);
    [[nodiscard]] std::uint32_t new_place();
    void learn(const resources& total);
    void open_place(std::uint32_t p, const needs& total, gpu_set gpus);
    std::vector<evicted> remove_place(place_id id);
    bool drain(place_id id, bool on);
    void join(place_domain& d, std::uint32_t p);
    void leave_all(std::uint32_t p);
    [[nodiscard]] bool is_open(const place_record& p) const;
    void offer(std::uint32_t p);
    void grow(std::uint32_t p);
    void count_cluster(const place_record& p, int sign);
    [[nodiscard]] place_domain* domain_of(const constraint_record& c);
    [[nodiscard]] std::uint32_t single_place(const constraint& where) const;
    [[nodiscard]] bool is_avoided(const constraint& where, std::uint32_t p) const;
    [[nodiscard]] bool matches(const constraint& where, std::uint32_t p) const;
    [[nodiscard]] bool allows(const class_record& c, std::uint32_t p) const;
    [[nodiscard]] bool is_feasible(std::uint32_t c);
    [[nodiscard]] std::uint32_t find(const queue_record& q);
    [[nodiscard]] bool fits_reserved(std::uint32_t p) const;
    [[nodiscard]] static room bundle_room(const needs& all);

    // scheduler_pump.ipp
    std::size_t take_grants(std::vector<grant>& into, std::size_t limit);
    void make_ready(std::uint32_t q);
    void not_ready(std::uint32_t q);
    void block(std::uint32_t q);
    void unblock_for(std::uint32_t p);
    void leave_blocked(std::uint32_t q);
    void recheck_feasible();
    void check_queue(std::uint32_t q);
    void resume(std::uint32_t p, std::vector<grant>& into);
    void look_at_grown(std::vector<grant>& into);
    [[nodiscard]] std::uint32_t next_job();
    [[nodiscard]] std::uint32_t next_queue(const job_record& j) const;
    void give(std::uint32_t q, std::uint32_t p, std::vector<grant>& into);
    void settle_on(std::uint32_t e, std::uint32_t p, gpu_set gpus);
    void charge(std::uint32_t job, const needs& all, int sign, bool with_cpus);
    void settle(job_record& j) const;
    void find_rate(job_record& j) const;
    void age(std::uint32_t q);
    void stop_ageing(std::uint32_t q);
    [[nodiscard]] std::uint64_t patience() const;
    void age_all();
    void reserve_for(std::uint32_t q);
    void drop_reservation(std::uint32_t p);
    void drop_hopeless(std::uint32_t p);
    [[nodiscard]] room obtainable(const place_record& p) const;

    // scheduler_groups.ipp
    [[nodiscard]] result<placement_group_id> create_group(group_request g);
    std::vector<evicted> remove_group(placement_group_id id);
    enum class outlook : std::uint8_t { now, soon, ever };
    [[nodiscard]] std::vector<plan_room> rooms_for(const group_record& g, outlook when) const;
    [[nodiscard]] std::vector<std::uint32_t> plan(const group_record& g, outlook when) const;
    void place_group(group_record& g);
    void place_groups();
    void check_group(group_record& g);
    void lose_bundle(group_record& g, std::size_t bundle, std::vector<evicted>& into);
    void reserve_for(group_record& g);
    void drop_reservations(group_record& g);
    void refuse_queues_of(placement_group_id id);

    // scheduler_report.ipp
    [[nodiscard]] error missing(const class_record& c) const;
    [[nodiscard]] error missing(const group_record& g) const;
    [[nodiscard]] std::string why_waits(const queue_record& q) const;
    [[nodiscard]] std::string where_text(const constraint& where) const;
    [[nodiscard]] std::string best_place(const class_record& c, bool ever) const;
    [[nodiscard]] std::string amount_text(std::uint32_t dim, std::int64_t n) const;
    [[nodiscard]] resources used_of(const place_record& p) const;
    [[nodiscard]] std::string why(request_id id) const;

    // What the books see of a constraint.
    [[nodiscard]] static bool is_anywhere(const constraint& w) {
        return w.kind_ == constraint::kind::anywhere;
    }
    [[nodiscard]] static const std::string* label_of(const constraint& w) {
        return w.kind_ == constraint::kind::label ? &w.label_ : nullptr;
    }
    [[nodiscard]] static place_id place_in(const constraint& w) {
        return place_id(w.kind_ == constraint::kind::place ? w.number_ : 0);
    }
    [[nodiscard]] static std::uint64_t group_in(const constraint& w) {
        return w.kind_ == constraint::kind::group ? w.number_ : 0;
    }
    [[nodiscard]] static int bundle_in(const constraint& w) { return w.bundle_; }
    [[nodiscard]] static bool spreads(const constraint& w) { return w.spread_; }
    [[nodiscard]] static const std::vector<place_id>& avoided(const constraint& w) {
        return w.avoid_;
    }
};

} // namespace skein::rt::detail


// ======== skein/rt/detail/scheduler.ipp, continued
#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE constraint constraint::on(place_id place) {
    constraint c;
    c.kind_ = kind::place;
    c.number_ = place.value();
    return c;
}
SKEIN_INLINE constraint constraint::labelled(std::string label) {
    constraint c;
    c.kind_ = kind::label;
    c.label_ = std::move(label);
    return c;
}
SKEIN_INLINE constraint constraint::spread() {
    constraint c;
    c.spread_ = true;
    return c;
}
SKEIN_INLINE constraint constraint::in(placement_group_id group, int bundle) {
    constraint c;
    c.kind_ = kind::group;
    c.number_ = group.value();
    c.bundle_ = bundle;
    return c;
}
SKEIN_INLINE constraint constraint::avoiding(std::vector<place_id> places) const {
    auto c = *this;
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    c.avoid_ = std::move(places);
    return c;
}

namespace detail {

/// What is asked for by dimension. A custom resource that no place has ever had gets no_index, which fits nowhere.
SKEIN_INLINE needs schedule_books::needs_of(const resources& r) {
    needs all;
    if (r.cpu) all.push_back({dim_cpu, r.cpu.in_steps()});
    if (r.memory != 0) all.push_back({dim_memory, static_cast<std::int64_t>(r.memory)});
    if (r.gpu) all.push_back({r.gpu.is_whole() ? dim_gpu : dim_share, r.gpu.in_steps()});
    for (const auto& c : r.custom) {
        const auto known = custom_dims.find(c.name);
        all.push_back({known == custom_dims.end() ? no_index : known->second, c.value.in_steps()});
    }
    return all;
}

/// An index for a new element, one that is free again if there is one.
template <class T>
[[nodiscard]] std::uint32_t free_index(std::vector<T>& all, std::vector<std::uint32_t>& free) {
    if (free.empty()) {
        all.emplace_back();
        return static_cast<std::uint32_t>(all.size() - 1);
    }
    const auto index = free.back();
    free.pop_back();
    all[index] = T();
    return index;
}

SKEIN_INLINE std::uint32_t schedule_books::intern_shape(const resources& demand) {
    if (const auto found = shape_of.find(demand); found != shape_of.end()) return found->second;
    const auto index = free_index(shapes, free_shapes);
    auto& s = shapes[index];
    s.demand = demand;
    number_shape(s);
    shape_of.emplace(demand, index);
    return index;
}

/// What a shape asks for in numbers; done again when a resource gets its number.
SKEIN_INLINE void schedule_books::number_shape(shape_record& s) {
    s.all = needs_of(s.demand);
    s.cpu = s.demand.cpu.in_steps();
    if (s.demand.gpu) {
        s.main = s.demand.gpu.is_whole() ? dim_gpu : dim_share;
    } else if (!s.all.empty()) {
        s.main = s.all.front().dim;
    }
}

SKEIN_INLINE std::uint32_t schedule_books::intern_constraint(const constraint& where) {
    if (const auto found = constraint_of.find(where); found != constraint_of.end())
        return found->second;
    const auto index = free_index(constraints, free_constraints);
    auto& c = constraints[index];
    c.where = where;
    if (const auto* label = label_of(where)) {
        c.labelled = std::make_unique<place_domain>();
        for (std::uint32_t p = 0; p < all_places.size(); ++p) {
            const auto& has = all_places[p].labels;
            if (all_places[p].alive && std::find(has.begin(), has.end(), *label) != has.end()) {
                join(*c.labelled, p);
                offer(p);
            }
        }
    }
    constraint_of.emplace(where, index);
    return index;
}

SKEIN_INLINE std::uint32_t schedule_books::intern_class(const request& r) {
    const std::pair key(intern_shape(r.demand), intern_constraint(r.where));
    if (const auto found = class_of.find(key); found != class_of.end()) return found->second;
    const auto index = free_index(classes, free_classes);
    classes[index].shape = key.first;
    classes[index].where = key.second;
    ++shapes[key.first].classes;
    ++constraints[key.second].classes;
    class_of.emplace(key, index);
    return index;
}

SKEIN_INLINE void schedule_books::drop_class(std::uint32_t c) {
    const auto shape = classes[c].shape, where = classes[c].where;
    class_of.erase({shape, where});
    free_classes.push_back(c);
    if (--shapes[shape].classes == 0) {
        shape_of.erase(shapes[shape].demand);
        free_shapes.push_back(shape);
    }
    if (--constraints[where].classes == 0) {
        if (const auto* domain = constraints[where].labelled.get())
            for (auto& p : all_places)
                std::erase_if(p.in, [&](const auto& x) { return x.first == domain; });
        constraint_of.erase(constraints[where].where);
        constraints[where] = {};
        free_constraints.push_back(where);
    }
}

SKEIN_INLINE std::uint32_t schedule_books::queue_for(const request& r) {
    if (recent.queue != no_index && recent.last.job == r.job && recent.last.demand == r.demand &&
        recent.last.where == r.where && recent.last.fail_if_infeasible == r.fail_if_infeasible)
        return recent.queue;
    const auto cls = intern_class(r);
    const std::tuple key(job_for(r.job), cls, r.fail_if_infeasible);
    auto found = queue_of.find(key);
    if (found == queue_of.end()) {
        const auto index = free_index(all_queues, free_queues);
        auto& q = all_queues[index];
        q.job = std::get<0>(key);
        q.cls = cls;
        q.fails = r.fail_if_infeasible;
        ++classes[cls].queues;
        found = queue_of.emplace(key, index).first;
    }
    recent.queue = found->second;
    recent.last = r;
    return found->second;
}

SKEIN_INLINE void schedule_books::drop_queue(std::uint32_t q) {
    auto& queue = all_queues[q];
    queue_of.erase({queue.job, queue.cls, queue.fails});
    if (recent.queue == q) recent.queue = no_index;
    if (--classes[queue.cls].queues == 0) drop_class(queue.cls);
    queue.cls = no_index;
    free_queues.push_back(q);
}

/// Nothing is queued in it or granted from it. The last ones are kept: the next request may want them.
SKEIN_INLINE void schedule_books::queue_is_idle(std::uint32_t q) {
    if (all_queues[q].queued != 0 || all_queues[q].granted != 0 || all_queues[q].idles) return;
    all_queues[q].idles = true;
    idle_queues.push_back(q);
    if (idle_queues.size() <= 64) return;
    const auto last = idle_queues.front();
    idle_queues.pop_front();
    all_queues[last].idles = false;
    if (all_queues[last].queued == 0 && all_queues[last].granted == 0) drop_queue(last);
}

SKEIN_INLINE std::uint32_t schedule_books::job_for(job_id id) {
    if (const auto found = job_of.find(id); found != job_of.end()) return found->second;
    const auto index = free_index(jobs, free_jobs);
    jobs[index].id = id;
    jobs[index].pass = virtual_time;
    jobs[index].at = turns;
    job_of.emplace(id, index);
    return index;
}

SKEIN_INLINE result<void> schedule_books::check(const request& r) const {
    if (auto ok = check_demand(r.demand); !ok) return ok;
    if (avoided(r.where).size() > 64)
        return error(errc::too_large, fmt::format("a request avoids {} places, more than 64",
                                                  avoided(r.where).size()))
            .with_hint("give the places that are wanted a label");
    const auto* label = label_of(r.where);
    if (label != nullptr && (label->empty() || label->size() > 256))
        return error(errc::invalid_argument, fmt::format("a label of {} bytes", label->size()))
            .with_hint("1 to 256");
    if (const auto number = group_in(r.where); number != 0) {
        const auto g = groups.find(number);
        if (g == groups.end())
            return error(errc::not_found, fmt::format("placement group {} is not there", number))
                .with_hint("it was removed, or never made here");
        const auto count = static_cast<int>(g->second.bundles.size());
        if (bundle_in(r.where) < -1 || bundle_in(r.where) >= count)
            return error(errc::invalid_argument, fmt::format("placement group {} has no bundle {}",
                                                             number, bundle_in(r.where)))
                .with_hint(fmt::format("it has 0 to {}; -1 is any", count - 1));
    }
    return {};
}

SKEIN_INLINE result<request_id> schedule_books::submit(const request& r) {
    if (auto ok = check(r); !ok) return ok.error();
    const auto q = queue_for(r);
    if (r.fail_if_infeasible && !is_feasible(all_queues[q].cls)) {
        auto why = missing(classes[all_queues[q].cls]);
        queue_is_idle(q);
        return why;
    }
    const auto e = requests.take();
    auto& entry = requests[e];
    entry.tag = r.tag;
    entry.order = ++submitted;
    entry.queue = q;
    entry.for_life = r.for_life;
    append(q, e);
    return request_id(requests.id(e));
}

SKEIN_INLINE result<request_id> schedule_books::adopt(request r, place_id at, gpu_set gpus) {
    const auto found = place_of.find(at);
    if (found == place_of.end()) return error(errc::not_found, "no such place");
    r.where = constraint::on(at); // nobody else asks for it: nothing of this queue waits
    r.fail_if_infeasible = false;
    const auto made = submit(r);
    if (!made) return made.error();
    const auto e = requests.find(made->value());
    auto& place = all_places[found->second];
    const auto& all = shapes[classes[all_queues[requests[e].queue].cls].shape].all;
    if (!place.now.take_these(all, gpus)) {
        cancel(*made);
        return error(errc::exhausted,
                     fmt::format("{} has not {} free", place.name, to_string(r.demand)));
    }
    unqueue(e);
    settle_on(e, found->second, gpus);
    return *made;
}

SKEIN_INLINE void schedule_books::append(std::uint32_t q, std::uint32_t e) {
    auto& queue = all_queues[q];
    auto& entry = requests[e];
    entry.state = request_state::queued;
    entry.prev = queue.last;
    (queue.last == no_index ? queue.first : requests[queue.last].next) = e;
    queue.last = e;
    ++queued;
    auto& job = jobs[queue.job];
    if (job.queued++ == 0) { // what it did not use while it asked for nothing is not owed to it
        settle(job);
        job.pass = std::max(job.pass, virtual_time);
    }
    if (queue.queued++ == 0) check_queue(q);
}

/// Takes a queued request out of its queue.
SKEIN_INLINE void schedule_books::unqueue(std::uint32_t e) {
    auto& entry = requests[e];
    const auto q = entry.queue;
    auto& queue = all_queues[q];
    (entry.prev == no_index ? queue.first : requests[entry.prev].next) = entry.next;
    (entry.next == no_index ? queue.last : requests[entry.next].prev) = entry.prev;
    entry.next = entry.prev = no_index;
    --queued;
    --jobs[queue.job].queued;
    if (--queue.queued != 0) return;
    if (queue.state == queue_state::ready) not_ready(q);
    if (queue.state == queue_state::blocked) leave_blocked(q);
    queue.state = queue_state::empty;
    queue.told = false;
    stop_ageing(q);
    if (queue.reserved != no_index) drop_reservation(queue.reserved);
}

SKEIN_INLINE bool schedule_books::cancel(request_id id) {
    const auto e = requests.find(id.value());
    if (e == no_index || requests[e].state != request_state::queued) return false;
    const auto q = requests[e].queue;
    unqueue(e);
    requests.free(e);
    queue_is_idle(q);
    return true;
}

SKEIN_INLINE void schedule_books::hold(std::uint32_t e, std::uint32_t place, gpu_set gpus) {
    auto& entry = requests[e];
    auto& p = all_places[place];
    entry.place = place;
    entry.gpus = gpus.bits();
    entry.state = request_state::running;
    entry.prev = no_index;
    entry.next = p.first_held;
    if (p.first_held != no_index) requests[p.first_held].prev = e;
    p.first_held = e;
    ++p.held;
    ++all_queues[entry.queue].granted;
    ++granted;
    count_running(entry, 1);
}

/// An entry begins (1) or stops (-1) to run.
SKEIN_INLINE void schedule_books::count_running(const request_entry& entry, int by) {
    if (entry.for_life) return;
    const auto add = static_cast<std::uint32_t>(by);
    auto& p = all_places[entry.place];
    p.running += add;
    if (shapes[classes[all_queues[entry.queue].cls].shape].cpu != 0) p.running_cpus += add;
    running += static_cast<std::size_t>(static_cast<std::int64_t>(by));
}

SKEIN_INLINE bool schedule_books::release(request_id id) {
    const auto e = requests.find(id.value());
    if (e == no_index || requests[e].state == request_state::queued) return false;
    give_back(e);
    return true;
}

/// All that a granted request holds; its entry is free then.
SKEIN_INLINE void schedule_books::give_back(std::uint32_t e) {
    const auto entry = requests[e];
    auto& p = all_places[entry.place];
    const auto q = entry.queue;
    const auto& shape = shapes[classes[all_queues[q].cls].shape];
    const bool has_cpus = entry.state == request_state::running;
    if (has_cpus) count_running(entry, -1);
    if (entry.state == request_state::waiting) --waiting;
    if (entry.state == request_state::resuming) {
        --resuming;
        std::erase(p.resuming, e);
        p.resuming_cpus -= shape.cpu;
    }
    (entry.prev == no_index ? p.first_held : requests[entry.prev].next) = entry.next;
    if (entry.next != no_index) requests[entry.next].prev = entry.prev;
    --p.held;
    --granted;
    p.now.give(shape.all, gpu_set(entry.gpus), has_cpus);
    if (p.host == no_index) charge(all_queues[q].job, shape.all, -1, has_cpus);
    requests.free(e);
    --all_queues[q].granted;
    offer(entry.place);
    grow(entry.place);
    queue_is_idle(q);
}

/// Everything that holds room on a place.
SKEIN_INLINE void schedule_books::evict(std::uint32_t place, std::vector<evicted>& into) {
    const auto begin = into.size();
    while (all_places[place].first_held != no_index) {
        const auto e = all_places[place].first_held;
        into.push_back({request_id(requests.id(e)), requests[e].tag});
        give_back(e);
    }
    std::reverse(into.begin() + static_cast<std::ptrdiff_t>(begin), into.end());
}

SKEIN_INLINE bool schedule_books::wait_begin(request_id id) {
    const auto e = requests.find(id.value());
    if (e == no_index || requests[e].state != request_state::running) return false;
    auto& entry = requests[e];
    const auto q = entry.queue;
    const auto cpu = shapes[classes[all_queues[q].cls].shape].cpu;
    auto& p = all_places[entry.place];
    count_running(entry, -1);
    entry.state = request_state::waiting;
    ++waiting;
    p.now.add_cpus(cpu);
    if (p.host == no_index && cpu != 0) charge(all_queues[q].job, {{dim_cpu, cpu}}, -1, true);
    offer(entry.place);
    grow(entry.place);
    return true;
}

SKEIN_INLINE bool schedule_books::wait_end(request_id id) {
    const auto e = requests.find(id.value());
    if (e == no_index || requests[e].state != request_state::waiting) return false;
    auto& entry = requests[e];
    const auto cpu = shapes[classes[all_queues[entry.queue].cls].shape].cpu;
    auto& p = all_places[entry.place];
    --waiting;
    if (cpu == 0 || (p.resuming.empty() && may_resume(p, cpu))) {
        take_cpus_again(e);
        offer(entry.place);
        return true;
    }
    entry.state = request_state::resuming;
    ++resuming;
    p.resuming.push_back(e);
    p.resuming_cpus += cpu;
    offer(entry.place);
    return false;
}

/// The cpus are free, or nobody is left on the place whose end or wait would free them: then the place runs more
/// than it has cpus, by this one.
SKEIN_INLINE bool schedule_books::may_resume(const place_record& p, std::int64_t cpu) {
    return p.now.at(dim_cpu) >= cpu || p.running_cpus == 0;
}

SKEIN_INLINE void schedule_books::take_cpus_again(std::uint32_t e) {
    auto& entry = requests[e];
    auto& p = all_places[entry.place];
    const auto cpu = shapes[classes[all_queues[entry.queue].cls].shape].cpu;
    entry.state = request_state::running;
    count_running(entry, 1);
    p.now.add_cpus(-cpu);
    if (p.host == no_index && cpu != 0)
        charge(all_queues[entry.queue].job, {{dim_cpu, cpu}}, 1, true);
}

/// Every queued request of a queue is gone, and its owner told so.
SKEIN_INLINE void schedule_books::refuse(std::uint32_t q, const error& why) {
    while (all_queues[q].first != no_index) {
        const auto e = all_queues[q].first;
        notice n;
        n.id = request_id(requests.id(e));
        n.tag = requests[e].tag;
        n.why = why;
        notices.push_back(std::move(n));
        unqueue(e);
        requests.free(e);
    }
    queue_is_idle(q);
}

SKEIN_INLINE std::vector<evicted> schedule_books::remove_job(job_id id) {
    std::vector<evicted> out;
    const auto found = job_of.find(id);
    if (found == job_of.end()) return out;
    const auto j = found->second;
    std::vector<placement_group_id> its_groups;
    for (const auto& [number, g] : groups)
        if (g.job_index == j) its_groups.push_back(g.id);
    for (const auto g : its_groups) {
        const auto gone = remove_group(g);
        out.insert(out.end(), gone.begin(), gone.end());
    }
    bool holds = false;
    for (std::uint32_t q = 0; q < all_queues.size(); ++q) {
        auto& queue = all_queues[q];
        if (queue.cls == no_index || queue.job != j) continue;
        while (queue.first != no_index) {
            const auto e = queue.first;
            unqueue(e);
            requests.free(e);
        }
        if (queue.granted != 0) {
            holds = true;
            continue;
        }
        std::erase(idle_queues, q);
        queue.idles = false;
        drop_queue(q);
    }
    if (!holds) {
        job_of.erase(found);
        free_jobs.push_back(j);
    }
    return out;
}

} // namespace detail

// ---- the public side -----------------------------------------------------------------------------------------

SKEIN_INLINE scheduler::scheduler(scheduler_options options)
    : books_(std::make_unique<detail::schedule_books>(options)) {}
SKEIN_INLINE scheduler::scheduler(scheduler&&) noexcept = default;
SKEIN_INLINE scheduler& scheduler::operator=(scheduler&&) noexcept = default;
SKEIN_INLINE scheduler::~scheduler() = default;

SKEIN_INLINE result<void> scheduler::add_place(place_id id, std::string name,
                                               const resources& total,
                                               std::vector<std::string> labels) {
    return books_->add_place(id, std::move(name), total, std::move(labels));
}
SKEIN_INLINE std::vector<evicted> scheduler::remove_place(place_id id) {
    return books_->remove_place(id);
}
SKEIN_INLINE bool scheduler::drain(place_id id, bool on) { return books_->drain(id, on); }
SKEIN_INLINE void scheduler::set_weight(job_id job, std::uint32_t weight) {
    auto& j = books_->jobs[books_->job_for(job)];
    books_->settle(j);
    j.weight = std::clamp(weight, 1u, 1000u);
    books_->find_rate(j);
}
SKEIN_INLINE std::vector<evicted> scheduler::remove_job(job_id job) {
    return books_->remove_job(job);
}
SKEIN_INLINE result<request_id> scheduler::submit(const request& r) { return books_->submit(r); }
SKEIN_INLINE result<request_id> scheduler::adopt(const request& r, place_id at, gpu_set gpus) {
    return books_->adopt(r, at, gpus);
}
SKEIN_INLINE bool scheduler::cancel(request_id id) { return books_->cancel(id); }
SKEIN_INLINE bool scheduler::release(request_id id) { return books_->release(id); }
SKEIN_INLINE bool scheduler::wait_begin(request_id id) { return books_->wait_begin(id); }
SKEIN_INLINE bool scheduler::wait_end(request_id id) { return books_->wait_end(id); }
SKEIN_INLINE result<placement_group_id> scheduler::create_group(group_request g) {
    return books_->create_group(std::move(g));
}
SKEIN_INLINE std::vector<evicted> scheduler::remove_group(placement_group_id id) {
    return books_->remove_group(id);
}
SKEIN_INLINE std::size_t scheduler::take_grants(std::vector<grant>& into, std::size_t limit) {
    return books_->take_grants(into, limit);
}
SKEIN_INLINE void scheduler::take_notices(std::vector<notice>& into) {
    for (auto& n : books_->notices) into.push_back(std::move(n));
    books_->notices.clear();
}

} // namespace skein::rt

// ======== skein/rt/detail/scheduler_groups.ipp
// Part of the bodies of rt/scheduler.hpp: placement groups. A group is planned on copies of the rooms and then
// placed as a whole or not at all; a plan looks at every place once, which a single request never does.
//
// Which bundles go together on which places is bin packing: the plan takes the largest first and the first place
// that fits, and so may miss a fit that exists. strict_spread is exact.


#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

/// One try to find places for the bundles of a group that have none.
class group_plan {
public:
    group_plan(const group_record& g, std::vector<plan_room> rooms, bool all_bundles)
        : group_(g), rooms_(std::move(rooms)), chosen_(g.bundles.size(), no_index) {
        for (std::uint32_t b = 0; b < g.bundles.size(); ++b)
            if (all_bundles || g.bundles[b].place == no_index) order_.push_back(b);
        const auto size = [&](std::uint32_t b) {
            const auto& n = g.bundles[b].all;
            return std::array{need_of(n, dim_gpu), need_of(n, dim_share), need_of(n, dim_cpu),
                              need_of(n, dim_memory)};
        };
        std::sort(order_.begin(), order_.end(), [&](auto a, auto b) {
            const auto x = size(a), y = size(b);
            return x != y ? x > y : a < b;
        });
    }

    /// The place of each bundle that had none; empty: there is no way.
    [[nodiscard]] std::vector<std::uint32_t> make() {
        bool found = false;
        switch (group_.strategy) {
        case group_strategy::strict_pack: found = on_one(); break;
        case group_strategy::pack: found = on_one() || greedy(true, false); break;
        case group_strategy::spread: found = greedy(false, false) || greedy(true, false); break;
        case group_strategy::strict_spread: found = greedy(false, true) || match(); break;
        }
        if (!found) chosen_.clear();
        return std::move(chosen_);
    }

private:
    bool on_one() {
        for (const auto& candidate : rooms_) {
            auto r = candidate.room;
            const bool all = std::all_of(order_.begin(), order_.end(), [&](auto b) {
                if (!r.fits(group_.bundles[b].all)) return false;
                r.take(group_.bundles[b].all);
                return true;
            });
            if (!all) continue;
            for (const auto b : order_) chosen_[b] = candidate.place;
            return true;
        }
        return false;
    }
    /// Largest first; together: rather on places that have one already, else rather not, or never.
    bool greedy(bool together, bool never_together) {
        auto rooms = rooms_;
        std::fill(chosen_.begin(), chosen_.end(), no_index);
        for (const auto b : order_) {
            const auto& all = group_.bundles[b].all;
            const auto main = all.empty() ? dim_order : all.front().dim;
            plan_room* best = nullptr;
            for (auto& r : rooms) {
                if ((never_together && r.used) || !r.room.fits(all)) continue;
                if (best == nullptr || (r.used != best->used && r.used == together) ||
                    (r.used == best->used && !together && r.room.at(main) > best->room.at(main)))
                    best = &r;
            }
            if (best == nullptr) return false;
            best->room.take(all);
            best->used = true;
            chosen_[b] = best->place;
        }
        return true;
    }
    /// Bundles and places in pairs: augmenting paths (Kuhn's algorithm), exact. Breadth first, without recursion.
    bool match() {
        std::vector<std::uint32_t> owner(rooms_.size(), no_index); // the bundle on a room
        for (const auto start : order_) {
            std::vector<std::uint32_t> reached_from(rooms_.size(), no_index); // the bundle before
            std::vector<std::uint32_t> line{start};
            std::vector<std::uint32_t> room_of(group_.bundles.size(), no_index);
            for (std::uint32_t r = 0; r < rooms_.size(); ++r)
                if (owner[r] != no_index) room_of[owner[r]] = r;
            auto end = no_index;
            for (std::size_t i = 0; i < line.size() && end == no_index; ++i)
                for (std::uint32_t r = 0; r < rooms_.size(); ++r) {
                    if (rooms_[r].used || reached_from[r] != no_index ||
                        !rooms_[r].room.fits(group_.bundles[line[i]].all))
                        continue;
                    reached_from[r] = line[i];
                    if (owner[r] == no_index) {
                        end = r;
                        break;
                    }
                    line.push_back(owner[r]);
                }
            if (end == no_index) return false;
            for (auto r = end; r != no_index;) { // each bundle of the path moves one room on
                const auto b = reached_from[r];
                owner[r] = b;
                r = b == start ? no_index : room_of[b];
            }
        }
        for (std::uint32_t r = 0; r < rooms_.size(); ++r)
            if (owner[r] != no_index) chosen_[owner[r]] = rooms_[r].place;
        return true;
    }

    const group_record& group_;
    std::vector<plan_room> rooms_;
    std::vector<std::uint32_t> order_, chosen_;
};

/// Copies of the rooms of all places that may take bundles: as they are, as they may become, or empty.
SKEIN_INLINE std::vector<plan_room> schedule_books::rooms_for(const group_record& g,
                                                              outlook when) const {
    std::vector<plan_room> rooms;
    for (std::uint32_t p = 0; p < all_places.size(); ++p) {
        const auto& place = all_places[p];
        if (place.host != no_index || !is_open(place)) continue;
        plan_room r;
        r.place = p;
        const bool others = place.kept.exists() && place.kept.group != g.id.value();
        if (when == outlook::ever) {
            r.room = room(place.total_needs, place.gpus);
        } else if (when == outlook::soon) {
            if (others) continue;
            r.room = obtainable(place);
        } else {
            r.room = place.now;
            r.room.add_cpus(-place.resuming_cpus);
            if (others) r.room.withhold(place.kept.kept);
        }
        if (when != outlook::ever)
            r.used = std::any_of(g.bundles.begin(), g.bundles.end(), [&](const auto& b) {
                return b.place != no_index && all_places[b.place].host == p;
            });
        rooms.push_back(std::move(r));
    }
    return rooms;
}

SKEIN_INLINE std::vector<std::uint32_t> schedule_books::plan(const group_record& g,
                                                             outlook when) const {
    return group_plan(g, rooms_for(g, when), when == outlook::ever).make();
}

SKEIN_INLINE result<placement_group_id> schedule_books::create_group(group_request g) {
    if (g.bundles.empty() || g.bundles.size() > 4096)
        return error(errc::invalid_argument,
                     fmt::format("a placement group of {} bundles", g.bundles.size()))
            .with_hint("1 to 4096");
    for (std::size_t b = 0; b < g.bundles.size(); ++b)
        if (auto ok = check_demand(g.bundles[b]); !ok) {
            auto why = ok.error();
            return std::move(why).with_where(fmt::format("bundle {}", b));
        }
    group_record r;
    r.id = placement_group_id(last_group + 1);
    r.job = g.job;
    r.job_index = job_for(g.job);
    r.strategy = g.strategy;
    r.tag = g.tag;
    r.since = grants;
    r.fails = g.fail_if_infeasible;
    for (auto& demand : g.bundles) {
        group_record::bundle b;
        b.all = needs_of(demand);
        b.demand = std::move(demand);
        r.bundles.push_back(std::move(b));
    }
    if (r.fails && plan(r, outlook::ever).empty()) return missing(r);
    const auto id = r.id;
    ++last_group;
    auto& kept = groups.emplace(last_group, std::move(r)).first->second;
    check_group(kept);
    groups_may_fit = true;
    return id;
}

/// Says so when no set of places could hold a group.
SKEIN_INLINE void schedule_books::check_group(group_record& g) {
    if (!plan(g, outlook::ever).empty()) {
        g.told = false;
        return;
    }
    notice n;
    n.what = g.fails ? notice::kind::refused : notice::kind::group_infeasible;
    n.group = g.id;
    n.tag = g.tag;
    n.why = missing(g);
    if (g.fails) {
        const auto id = g.id;
        const auto gone = remove_group(id);
        for (const auto& e : gone) { // its last bundles held these; nobody asked for the removal
            notice held;
            held.id = e.id;
            held.tag = e.tag;
            held.group = id;
            held.why = n.why;
            notices.push_back(std::move(held));
        }
    } else if (std::exchange(g.told, true)) {
        return;
    }
    notices.push_back(std::move(n));
}

/// Places the bundles that have no place: all of them, or none.
SKEIN_INLINE void schedule_books::place_group(group_record& g) {
    const auto chosen = plan(g, outlook::now);
    if (chosen.empty()) return;
    drop_reservations(g);
    for (std::size_t b = 0; b < g.bundles.size(); ++b) {
        if (g.bundles[b].place != no_index) continue;
        const auto host = chosen[b];
        const auto p = new_place();
        auto& place = all_places[p]; // new_place() may have moved all
        auto& under = all_places[host];
        place.id = under.id;
        place.name = under.name;
        place.total = g.bundles[b].demand;
        place.host = host;
        place.group = g.id.value();
        place.bundle = static_cast<int>(b);
        const auto gpus = under.now.take(g.bundles[b].all);
        open_place(p, g.bundles[b].all, gpus);
        join(g.domain, p);
        g.bundles[b].place = p;
        charge(g.job_index, g.bundles[b].all, 1, true);
        offer(host);
        offer(p);
        grow(p);
    }
    g.waits = false;
    ++grants;
    notice n;
    n.what = notice::kind::group_placed;
    n.group = g.id;
    n.tag = g.tag;
    for (const auto& b : g.bundles) n.bundles.push_back(all_places[b.place].id);
    n.why = error(errc::unknown, "placed");
    notices.push_back(std::move(n));
}

SKEIN_INLINE void schedule_books::place_groups() {
    if (!std::exchange(groups_may_fit, false)) return;
    for (auto& [number, g] : groups)
        if (g.waits && !g.told) place_group(g);
}

SKEIN_INLINE void schedule_books::lose_bundle(group_record& g, std::size_t bundle,
                                              std::vector<evicted>& into) {
    const auto p = g.bundles[bundle].place;
    const auto host = all_places[p].host;
    const auto gpus = all_places[p].gpus;
    drop_reservation(p);
    all_places[p].alive = false;
    evict(p, into);
    leave_all(p);
    free_places.push_back(p);
    g.bundles[bundle].place = no_index;
    charge(g.job_index, g.bundles[bundle].all, -1, true);
    all_places[host].now.give(g.bundles[bundle].all, gpus);
    offer(host);
    grow(host);
}

SKEIN_INLINE std::vector<evicted> schedule_books::remove_group(placement_group_id id) {
    std::vector<evicted> out;
    const auto found = groups.find(id.value());
    if (found == groups.end()) return out;
    drop_reservations(found->second);
    for (std::size_t b = 0; b < found->second.bundles.size(); ++b)
        if (found->second.bundles[b].place != no_index) lose_bundle(found->second, b, out);
    refuse_queues_of(id);
    groups.erase(found);
    return out;
}

SKEIN_INLINE void schedule_books::refuse_queues_of(placement_group_id id) {
    for (std::uint32_t q = 0; q < all_queues.size(); ++q) {
        const auto& queue = all_queues[q];
        if (queue.cls == no_index ||
            group_in(constraints[classes[queue.cls].where].where) != id.value())
            continue;
        if (queue.queued != 0)
            refuse(q, error(errc::closed, fmt::format("placement group {} was removed", id)));
    }
}

/// Keeps a set of places free for a group, where it would fit once what runs there has ended.
SKEIN_INLINE void schedule_books::reserve_for(group_record& g) {
    g.since = grants;
    const auto chosen = plan(g, outlook::soon);
    if (chosen.empty()) return;
    for (std::size_t b = 0; b < chosen.size(); ++b) {
        if (chosen[b] == no_index) continue;
        auto& kept = all_places[chosen[b]].kept;
        kept.group = g.id.value();
        for (const auto& n : g.bundles[b].all) {
            const auto same = std::find_if(kept.kept.begin(), kept.kept.end(),
                                           [&](const need& k) { return k.dim == n.dim; });
            if (same == kept.kept.end()) {
                kept.kept.push_back(n);
            } else if (n.dim == dim_share) {
                same->least = std::max(same->least, n.least);
            } else {
                same->least += n.least;
            }
        }
        offer(chosen[b]);
    }
    g.reserved = true;
    ++reservations;
}

SKEIN_INLINE void schedule_books::drop_reservations(group_record& g) {
    if (!std::exchange(g.reserved, false)) return;
    g.since = grants;
    for (std::uint32_t p = 0; p < all_places.size(); ++p) {
        if (all_places[p].kept.group != g.id.value()) continue;
        all_places[p].kept = {};
        offer(p);
        grow(p);
    }
}

} // namespace skein::rt::detail

// ======== skein/rt/detail/scheduler_places.ipp
// Part of the bodies of rt/scheduler.hpp: places, what they offer, and the search among them.


#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

[[nodiscard]] inline gpu_set first_gpus(std::int64_t count) noexcept {
    gpu_set all;
    for (int i = 0; i < count && i < gpu_set::most; ++i) all.insert(i);
    return all;
}

SKEIN_INLINE std::uint32_t schedule_books::new_place() {
    if (free_places.empty()) {
        all_places.emplace_back();
        return static_cast<std::uint32_t>(all_places.size() - 1);
    }
    const auto p = free_places.back();
    free_places.pop_back();
    const bool listed = all_places[p].grown; // of the one before it
    all_places[p] = {};
    all_places[p].grown = listed;
    return p;
}

/// Numbers for the custom resources of a new place; requests that named one before can be compared now.
SKEIN_INLINE void schedule_books::learn(const resources& total) {
    const auto before = dims;
    for (const auto& c : total.custom)
        if (custom_dims.emplace(c.name, dims).second) ++dims;
    if (dims == before) return;
    for (auto& s : shapes) number_shape(s);
    for (auto& [number, g] : groups)
        for (auto& b : g.bundles) b.all = needs_of(b.demand);
    for (auto& p : all_places)
        for (const auto& [domain, leaf] : p.in) {
            domain->now.reserve(1, dims);
            domain->ever.reserve(1, dims);
        }
}

SKEIN_INLINE result<void> schedule_books::add_place(place_id id, std::string name,
                                                    const resources& total,
                                                    std::vector<std::string> labels) {
    const auto where = fmt::format("place {} ({})", id, name);
    if (!id || place_of.contains(id))
        return error(id ? errc::already_exists : errc::invalid_argument,
                     id ? "a place with this number is there already" : "0 is no place")
            .with_where(where)
            .with_hint("remove_place() first, or choose another number");
    if (auto ok = check_total(total); !ok) {
        auto why = ok.error();
        return std::move(why).with_where(where);
    }
    const bool long_label = std::any_of(labels.begin(), labels.end(),
                                        [](const auto& l) { return l.empty() || l.size() > 256; });
    if (labels.size() > 64 || long_label)
        return error(errc::too_large, "more than 64 labels, or one that is empty or over 256 bytes")
            .with_where(where);
    learn(total);
    const auto p = new_place();
    auto& place = all_places[p];
    place.id = id;
    place.name = std::move(name);
    place.labels = std::move(labels);
    place.total = total;
    place_of.emplace(id, p);
    open_place(p, needs_of(total), first_gpus(total.gpu.in_steps() / amount::steps));
    join(everywhere, p);
    for (auto& c : constraints) {
        const auto* label = c.labelled ? label_of(c.where) : nullptr;
        if (label != nullptr &&
            std::find(place.labels.begin(), place.labels.end(), *label) != place.labels.end())
            join(*c.labelled, p);
    }
    count_cluster(place, 1);
    ++places_version;
    offer(p);
    grow(p);
    return {};
}

SKEIN_INLINE void schedule_books::open_place(std::uint32_t p, const needs& total, gpu_set gpus) {
    auto& place = all_places[p];
    place.alive = true;
    place.total_needs = total;
    place.gpus = gpus;
    place.now = room(total, gpus);
}

SKEIN_INLINE void schedule_books::join(place_domain& d, std::uint32_t p) {
    std::uint32_t leaf;
    if (d.holes.empty()) {
        leaf = static_cast<std::uint32_t>(d.members.size());
        d.members.push_back(p);
    } else {
        leaf = d.holes.back();
        d.holes.pop_back();
        d.members[leaf] = p;
    }
    d.now.reserve(static_cast<std::uint32_t>(d.members.size()), dims);
    d.ever.reserve(static_cast<std::uint32_t>(d.members.size()), dims);
    auto& place = all_places[p];
    if (is_open(place)) d.ever.set(leaf, room(place.total_needs, place.gpus).keys());
    place.in.emplace_back(&d, leaf);
}

SKEIN_INLINE void schedule_books::leave_all(std::uint32_t p) {
    for (const auto& [domain, leaf] : all_places[p].in) {
        domain->now.close(leaf);
        domain->ever.close(leaf);
        domain->members[leaf] = no_index;
        domain->holes.push_back(leaf);
    }
    all_places[p].in.clear();
}

SKEIN_INLINE std::vector<evicted> schedule_books::remove_place(place_id id) {
    std::vector<evicted> out;
    const auto found = place_of.find(id);
    if (found == place_of.end()) return out;
    const auto p = found->second;
    drop_reservation(p);
    all_places[p].alive = false;
    for (auto& [number, g] : groups) {
        bool broken = false;
        for (std::size_t b = 0; b < g.bundles.size(); ++b) {
            if (g.bundles[b].place == no_index || all_places[g.bundles[b].place].host != p)
                continue;
            lose_bundle(g, b, out);
            broken = true;
        }
        if (!broken) continue;
        g.waits = true;
        g.since = grants;
        notice n;
        n.what = notice::kind::group_broken;
        n.group = g.id;
        n.tag = g.tag;
        n.why = error(errc::peer_lost, fmt::format("{} has gone", all_places[p].name));
        notices.push_back(std::move(n));
    }
    evict(p, out);
    leave_all(p);
    count_cluster(all_places[p], -1);
    place_of.erase(id);
    free_places.push_back(p);
    ++places_version;
    groups_may_fit = true;
    return out;
}

SKEIN_INLINE bool schedule_books::drain(place_id id, bool on) {
    const auto found = place_of.find(id);
    if (found == place_of.end()) return false;
    if (all_places[found->second].draining == on) return true;
    all_places[found->second].draining = on;
    if (on) drop_reservation(found->second);
    for (std::uint32_t p = 0; p < all_places.size(); ++p) { // with the bundles that lie on it
        auto& place = all_places[p];
        if (!place.alive || (p != found->second && place.host != found->second)) continue;
        if (on && p != found->second) drop_reservation(p);
        const auto ever = room(place.total_needs, place.gpus);
        for (const auto& [domain, leaf] : place.in) {
            if (on) {
                domain->ever.close(leaf);
            } else {
                domain->ever.set(leaf, ever.keys());
            }
        }
        offer(p);
        grow(p);
    }
    ++places_version;
    return true;
}

SKEIN_INLINE bool schedule_books::is_open(const place_record& p) const {
    return p.alive && !p.draining &&
           (p.host == no_index || (all_places[p.host].alive && !all_places[p.host].draining));
}

/// Works out what a place has for new requests, and tells the trees.
SKEIN_INLINE void schedule_books::offer(std::uint32_t p) {
    auto& place = all_places[p];
    if (!is_open(place)) {
        for (const auto& [domain, leaf] : place.in) domain->now.close(leaf);
        return;
    }
    if (place.resuming_cpus == 0 && !place.kept.exists()) {
        for (const auto& [domain, leaf] : place.in) domain->now.set(leaf, place.now.keys());
        return;
    }
    auto offered = place.now.keys();
    offered[dim_cpu] -= place.resuming_cpus; // before anyone new
    for (const auto& n : place.kept.kept) {
        if (n.dim == dim_gpu || n.dim == dim_share) {
            offered[dim_gpu] = offered[dim_share] = 0;
        } else if (n.dim < offered.size()) {
            offered[n.dim] -= n.least;
        }
    }
    for (const auto& [domain, leaf] : place.in) domain->now.set(leaf, offered);
}

/// A place may have more room than before: what was blocked may fit.
SKEIN_INLINE void schedule_books::grow(std::uint32_t p) {
    if (all_places[p].host == no_index) groups_may_fit = true;
    if (all_places[p].grown) return;
    all_places[p].grown = true;
    grown.push_back(p);
}

/// Shares are parts of what all places have together.
SKEIN_INLINE void schedule_books::count_cluster(const place_record& p, int sign) {
    cluster.resize(dims);
    for (const auto& n : p.total_needs) cluster[n.dim] += sign * n.least;
    for (auto& j : jobs) {
        settle(j);
        find_rate(j);
    }
}

/// Where a search for a constraint goes; nullptr: it names one place.
SKEIN_INLINE place_domain* schedule_books::domain_of(const constraint_record& c) {
    if (is_anywhere(c.where)) return &everywhere;
    if (c.labelled) return c.labelled.get();
    if (const auto number = group_in(c.where); number != 0 && bundle_in(c.where) < 0) {
        const auto g = groups.find(number);
        return g == groups.end() ? nullptr : &g->second.domain;
    }
    return nullptr;
}

/// The one place of a constraint that names one, if it is there.
SKEIN_INLINE std::uint32_t schedule_books::single_place(const constraint& where) const {
    if (const auto number = group_in(where); number != 0) {
        const auto g = groups.find(number);
        const auto b = bundle_in(where);
        return g == groups.end() || b < 0 ? no_index
                                          : g->second.bundles[static_cast<std::size_t>(b)].place;
    }
    const auto found = place_of.find(place_in(where));
    return found == place_of.end() ? no_index : found->second;
}

SKEIN_INLINE bool schedule_books::is_avoided(const constraint& where, std::uint32_t p) const {
    const auto& not_these = avoided(where);
    return !not_these.empty() &&
           std::binary_search(not_these.begin(), not_these.end(), all_places[p].id);
}

/// Whether a constraint lets requests go to a place at all.
SKEIN_INLINE bool schedule_books::matches(const constraint& where, std::uint32_t p) const {
    const auto& place = all_places[p];
    if (is_avoided(where, p)) return false;
    if (const auto number = group_in(where); number != 0)
        return place.group == number && (bundle_in(where) < 0 || bundle_in(where) == place.bundle);
    if (place.host != no_index) return false;
    if (const auto* label = label_of(where))
        return std::find(place.labels.begin(), place.labels.end(), *label) != place.labels.end();
    return is_anywhere(where) || place.id == place_in(where);
}

/// Whether a place offers enough to the requests of a class.
SKEIN_INLINE bool schedule_books::allows(const class_record& c, std::uint32_t p) const {
    const auto& place = all_places[p];
    return place.alive &&
           place.in.front().first->now.fits(place.in.front().second, shapes[c.shape].all) &&
           matches(constraints[c.where].where, p);
}

/// Whether a place could hold it if it were empty; worked out again when places have changed.
SKEIN_INLINE bool schedule_books::is_feasible(std::uint32_t c) {
    auto& cls = classes[c];
    if (cls.checked == places_version) return cls.feasible;
    cls.checked = places_version;
    const auto& all = shapes[cls.shape].all;
    const auto& where = constraints[cls.where].where;
    if (const auto number = group_in(where); number != 0) {
        cls.feasible = false;
        const auto g = groups.find(number);
        if (g == groups.end()) return false;
        for (std::size_t b = 0; b < g->second.bundles.size() && !cls.feasible; ++b)
            cls.feasible = (bundle_in(where) < 0 || std::cmp_equal(bundle_in(where), b)) &&
                           bundle_room(g->second.bundles[b].all).fits(all);
        return cls.feasible;
    }
    if (const auto* domain = domain_of(constraints[cls.where])) {
        const auto found = domain->ever.first(
            all, [&](std::uint32_t leaf) { return !is_avoided(where, domain->members[leaf]); });
        cls.feasible = found != no_index;
    } else {
        const auto p = single_place(where);
        cls.feasible = p != no_index && is_open(all_places[p]) && !is_avoided(where, p) &&
                       room(all_places[p].total_needs, all_places[p].gpus).fits(all);
    }
    return cls.feasible;
}

/// The place for the first request of a queue, or no_index.
SKEIN_INLINE std::uint32_t schedule_books::find(const queue_record& q) {
    const auto& cls = classes[q.cls];
    const auto& shape = shapes[cls.shape];
    const auto& where = constraints[cls.where];
    if (q.reserved != no_index && fits_reserved(q.reserved)) return q.reserved;
    const auto* domain = domain_of(where);
    if (domain == nullptr) {
        const auto p = single_place(where.where);
        return p != no_index && allows(cls, p) ? p : no_index;
    }
    const auto accept = [&](std::uint32_t leaf) {
        return !is_avoided(where.where, domain->members[leaf]);
    };
    const bool spread = spreads(where.where) || options.policy == placement::spread;
    // What needs nothing would all be packed onto one place.
    const auto leaf = spread || shape.all.empty() ? domain->now.most(shape.main, shape.all, accept)
                                                  : domain->now.first(shape.all, accept);
    return leaf == no_index ? no_index : domain->members[leaf];
}

/// What is kept free is there.
SKEIN_INLINE bool schedule_books::fits_reserved(std::uint32_t p) const {
    const auto& place = all_places[p];
    return is_open(place) &&
           std::all_of(place.kept.kept.begin(), place.kept.kept.end(), [&](const need& n) {
               const auto pending = n.dim == dim_cpu ? place.resuming_cpus : 0;
               return place.now.at(n.dim) - pending >= n.least;
           });
}

/// The room of a bundle as if it lay on gpus 0, 1, ...
SKEIN_INLINE room schedule_books::bundle_room(const needs& all) {
    const auto whole = need_of(all, dim_gpu) / amount::steps;
    return {all, first_gpus(need_of(all, dim_share) != 0 ? 1 : whole)};
}

} // namespace skein::rt::detail

// ======== skein/rt/detail/scheduler_pump.ipp
// Part of the bodies of rt/scheduler.hpp: who is next. Fair shares, ageing, reservations.
//
// With every turn that grants something to anybody a job is charged by its share of the cluster at its end, divided
// by its weight. The ready job with the smallest charge is next. So what counts is how much a job holds and for how
// long, and the clock is the number of turns. (Not of grants: in a turn with many, the first would cost most.)


#include <algorithm>
#include <utility>

namespace skein::rt::detail {

inline constexpr double charge_scale = 1 << 24; ///< the whole cluster, for one turn
/// A job can owe so many turns of the whole cluster; what it held long ago is forgotten.
inline constexpr std::uint64_t most_owed = std::uint64_t{64} << 24;
/// What a job holds at the moment counts as if it went on for so many turns: without that, jobs of long tasks
/// hold too much and too little in turns.
inline constexpr std::uint64_t looked_ahead = 16;
/// Times a request may fit, while another job comes first, before that counts as being passed.
inline constexpr std::uint32_t free_chances = 16;

SKEIN_INLINE std::size_t schedule_books::take_grants(std::vector<grant>& into, std::size_t limit) {
    const auto before = into.size();
    const auto granted_before = grants;
    if (checked_version != places_version) recheck_feasible();
    for (;;) {
        look_at_grown(into);
        place_groups();
        while (into.size() - before < limit) {
            const auto j = next_job();
            if (j == no_index) break;
            const auto q = next_queue(jobs[j]);
            const auto p = find(all_queues[q]);
            if (p == no_index) {
                block(q);
            } else {
                give(q, p, into);
            }
        }
        if (into.size() - before >= limit) break;
        age_all();
        if (grown.empty() && !groups_may_fit) break;
    }
    if (grants != granted_before) ++turns;
    return into.size() - before;
}

// ---- the states of a queue -----------------------------------------------------------------------------------

SKEIN_INLINE void schedule_books::make_ready(std::uint32_t q) {
    auto& queue = all_queues[q];
    if (queue.state == queue_state::ready || queue.queued == 0) return;
    if (queue.state == queue_state::blocked) leave_blocked(q);
    if (queue.ages && queue.chances < free_chances) { // it may be granted now: nobody passes it
        const auto chances = queue.chances + 1;
        stop_ageing(q);
        age(q);
        queue.chances = chances;
    }
    queue.state = queue_state::ready;
    auto& job = jobs[queue.job];
    job.ready.push_back(q);
    if (job.is_ready) return;
    job.is_ready = true;
    ready_jobs.push_back(queue.job);
}

SKEIN_INLINE void schedule_books::not_ready(std::uint32_t q) {
    auto& job = jobs[all_queues[q].job];
    const auto at = std::find(job.ready.begin(), job.ready.end(), q);
    *at = job.ready.back();
    job.ready.pop_back();
    if (!job.ready.empty()) return;
    job.is_ready = false;
    std::erase(ready_jobs, all_queues[q].job);
}

/// It fits nowhere until a place has more room.
SKEIN_INLINE void schedule_books::block(std::uint32_t q) {
    auto& queue = all_queues[q];
    not_ready(q);
    queue.state = queue_state::blocked;
    auto& cls = classes[queue.cls];
    if (cls.blocked.empty()) waiting_classes.push_back(queue.cls);
    cls.blocked.push_back(q);
    if (!queue.ages && queue.reserved == no_index) age(q);
}

SKEIN_INLINE void schedule_books::leave_blocked(std::uint32_t q) {
    auto& cls = classes[all_queues[q].cls];
    std::erase(cls.blocked, q);
    if (cls.blocked.empty()) std::erase(waiting_classes, all_queues[q].cls);
}

/// Looks where a queue with requests belongs: new ones, and all when places have come or gone.
SKEIN_INLINE void schedule_books::check_queue(std::uint32_t q) {
    auto& queue = all_queues[q];
    if (is_feasible(queue.cls)) {
        queue.told = false;
        make_ready(q);
        return;
    }
    if (queue.fails) return refuse(q, missing(classes[queue.cls]));
    if (queue.state == queue_state::ready) not_ready(q);
    if (queue.state == queue_state::blocked) leave_blocked(q);
    stop_ageing(q);
    queue.state = queue_state::infeasible;
    if (std::exchange(queue.told, true)) return;
    notice n;
    n.what = notice::kind::infeasible;
    n.id = request_id(requests.id(queue.first));
    n.tag = requests[queue.first].tag;
    n.why = missing(classes[queue.cls]);
    notices.push_back(std::move(n));
}

SKEIN_INLINE void schedule_books::recheck_feasible() {
    checked_version = places_version;
    for (std::uint32_t q = 0; q < all_queues.size(); ++q)
        if (all_queues[q].cls != no_index && all_queues[q].queued != 0) check_queue(q);
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, g] : groups) numbers.push_back(number);
    for (const auto number : numbers)
        if (groups.at(number).waits) check_group(groups.at(number));
}

// ---- room that has become free -------------------------------------------------------------------------------

SKEIN_INLINE void schedule_books::look_at_grown(std::vector<grant>& into) {
    std::vector<std::uint32_t> now;
    while (!grown.empty()) {
        now.swap(grown);
        for (const auto p : now) {
            all_places[p].grown = false;
            if (!all_places[p].alive) continue;
            resume(p, into);
            drop_hopeless(p);
            unblock_for(p);
        }
        now.clear();
    }
}

/// Those that have waited for others go on, in the order in which they could.
SKEIN_INLINE void schedule_books::resume(std::uint32_t p, std::vector<grant>& into) {
    auto& place = all_places[p];
    bool any = false;
    while (!place.resuming.empty()) {
        const auto e = place.resuming.front();
        const auto& entry = requests[e];
        const auto cpu = shapes[classes[all_queues[entry.queue].cls].shape].cpu;
        if (!may_resume(place, cpu)) break;
        place.resuming.erase(place.resuming.begin());
        place.resuming_cpus -= cpu;
        --resuming;
        take_cpus_again(e);
        any = true;
        grant g;
        g.id = request_id(requests.id(e));
        g.tag = entry.tag;
        g.place = place.id;
        g.gpus = gpu_set(entry.gpus);
        g.bundle = place.bundle;
        g.resumed = true;
        into.push_back(g);
    }
    if (any) offer(p);
}

SKEIN_INLINE void schedule_books::unblock_for(std::uint32_t p) {
    const auto& kept = all_places[p].kept;
    if (kept.queue != no_index && all_queues[kept.queue].state == queue_state::blocked &&
        fits_reserved(p))
        make_ready(kept.queue);
    for (std::size_t i = 0; i < waiting_classes.size();) {
        const auto c = waiting_classes[i];
        if (!allows(classes[c], p)) {
            ++i;
            continue;
        }
        const auto blocked =
            classes[c].blocked; // leaving changes the list, the last one waiting_classes
        for (const auto q : blocked) make_ready(q);
    }
}

// ---- who is next ---------------------------------------------------------------------------------------------

SKEIN_INLINE std::uint32_t schedule_books::next_job() {
    auto best = no_index;
    std::uint64_t least = 0;
    for (const auto j : ready_jobs) {
        settle(jobs[j]);
        const auto charge = jobs[j].pass + looked_ahead * jobs[j].rate;
        if (best != no_index && (charge > least || (charge == least && jobs[j].id > jobs[best].id)))
            continue;
        best = j;
        least = charge;
    }
    return best;
}

/// The queue whose first request is oldest.
SKEIN_INLINE std::uint32_t schedule_books::next_queue(const job_record& j) const {
    return *std::min_element(j.ready.begin(), j.ready.end(), [&](auto a, auto b) {
        return requests[all_queues[a].first].order < requests[all_queues[b].first].order;
    });
}

SKEIN_INLINE void schedule_books::give(std::uint32_t q, std::uint32_t p, std::vector<grant>& into) {
    const auto e = all_queues[q].first;
    const auto& shape = shapes[classes[all_queues[q].cls].shape];
    stop_ageing(q);
    if (all_queues[q].reserved != no_index) drop_reservation(all_queues[q].reserved);
    unqueue(e);
    auto& place = all_places[p];
    grant g;
    g.gpus = place.now.take(shape.all);
    virtual_time = std::max(virtual_time, jobs[all_queues[q].job].pass);
    settle_on(e, p, g.gpus);
    ++grants;
    g.id = request_id(requests.id(e));
    g.tag = requests[e].tag;
    g.place = place.id;
    g.bundle = place.bundle;
    into.push_back(g);
}

/// Room has been taken for e.
SKEIN_INLINE void schedule_books::settle_on(std::uint32_t e, std::uint32_t p, gpu_set gpus) {
    hold(e, p, gpus);
    const auto& queue = all_queues[requests[e].queue];
    if (all_places[p].host == no_index)
        charge(queue.job, shapes[classes[queue.cls].shape].all, 1, true);
    offer(p);
}

SKEIN_INLINE void schedule_books::charge(std::uint32_t job, const needs& all, int sign,
                                         bool with_cpus) {
    auto& j = jobs[job];
    settle(j);
    if (j.used.size() < dims) j.used.resize(dims);
    for (const auto& n : all)
        if (with_cpus || n.dim != dim_cpu)
            j.used[n.dim == dim_share ? dim_gpu : n.dim] += sign * n.least;
    find_rate(j);
}

/// The charge up to now.
SKEIN_INLINE void schedule_books::settle(job_record& j) const {
    j.pass = std::min(j.pass + j.rate * (turns - j.at), virtual_time + most_owed);
    j.at = turns;
}

/// Its largest share of any resource (dominant resource fairness), by its weight. Rounded up: nothing is free.
SKEIN_INLINE void schedule_books::find_rate(job_record& j) const {
    double share = 0;
    for (std::size_t d = dim_cpu; d < j.used.size(); ++d) {
        if (j.used[d] <= 0) continue;
        const auto all = d < cluster.size() ? cluster[d] : 0;
        const double part =
            static_cast<double>(j.used[d]) / static_cast<double>(std::max(all, j.used[d]));
        share = std::max(share, part);
    }
    j.rate = static_cast<std::uint64_t>(share * charge_scale) / j.weight;
    if (share > 0) ++j.rate;
}

// ---- waiting for long ----------------------------------------------------------------------------------------

SKEIN_INLINE std::uint64_t schedule_books::patience() const {
    return std::max<std::uint64_t>({1, options.patience, place_of.size()});
}

SKEIN_INLINE void schedule_books::age(std::uint32_t q) {
    auto& queue = all_queues[q];
    queue.ages = true;
    queue.chances = 0;
    queue.since = grants;
    queue.older = youngest;
    queue.younger = no_index;
    (youngest == no_index ? oldest : all_queues[youngest].younger) = q;
    youngest = q;
}

SKEIN_INLINE void schedule_books::stop_ageing(std::uint32_t q) {
    auto& queue = all_queues[q];
    if (!std::exchange(queue.ages, false)) return;
    (queue.older == no_index ? oldest : all_queues[queue.older].younger) = queue.younger;
    (queue.younger == no_index ? youngest : all_queues[queue.younger].older) = queue.older;
    queue.older = queue.younger = no_index;
}

/// Keeps places free for those that too many grants have passed, and ends what has come to nothing.
SKEIN_INLINE void schedule_books::age_all() {
    const auto old = reserved_queues;
    for (const auto q : old)
        if (grants - all_queues[q].since >= 4 * patience())
            drop_reservation(all_queues[q].reserved);
    while (oldest != no_index && grants - all_queues[oldest].since >= patience()) {
        const auto q = oldest;
        stop_ageing(q);
        if (all_queues[q].state == queue_state::blocked) reserve_for(q);
        if (all_queues[q].reserved == no_index) age(q);
    }
    for (auto& [number, g] : groups) {
        if (!g.waits || g.told) continue;
        if (g.reserved && grants - g.since >= 4 * patience()) drop_reservations(g);
        if (!g.reserved && grants - g.since >= patience()) reserve_for(g);
    }
}

/// What would be free on a place if all had ended that can be counted on to end.
SKEIN_INLINE room schedule_books::obtainable(const place_record& p) const {
    auto r = p.now;
    for (auto e = p.first_held; e != no_index; e = requests[e].next) {
        const auto& entry = requests[e];
        if (entry.for_life || entry.state == request_state::waiting) continue;
        const auto& shape = shapes[classes[all_queues[entry.queue].cls].shape];
        r.give(shape.all, gpu_set(entry.gpus), entry.state == request_state::running);
    }
    return r;
}

/// Keeps the place free where least is missing.
SKEIN_INLINE void schedule_books::reserve_for(std::uint32_t q) {
    const auto& cls = classes[all_queues[q].cls];
    const auto& all = shapes[cls.shape].all;
    auto best = no_index;
    double least = 0;
    for (std::uint32_t p = 0; p < all_places.size(); ++p) {
        const auto& place = all_places[p];
        if (!is_open(place) || place.kept.exists() || place.running == 0 ||
            !matches(constraints[cls.where].where, p))
            continue;
        double missing_part = 0;
        for (const auto& n : all)
            missing_part += std::max(0.0, 1 - static_cast<double>(place.now.at(n.dim)) /
                                                  static_cast<double>(n.least));
        if (best != no_index && missing_part >= least) continue;
        if (!obtainable(place).fits(all)) continue;
        best = p;
        least = missing_part;
    }
    if (best == no_index) return;
    all_places[best].kept.kept = all;
    all_places[best].kept.queue = q;
    all_queues[q].reserved = best;
    all_queues[q].since = grants;
    reserved_queues.push_back(q);
    ++reservations;
    offer(best);
}

SKEIN_INLINE void schedule_books::drop_reservation(std::uint32_t p) {
    auto& place = all_places[p];
    if (!place.kept.exists()) return;
    if (place.kept.group != 0) return drop_reservations(groups.at(place.kept.group));
    const auto q = place.kept.queue;
    all_queues[q].reserved = no_index;
    std::erase(reserved_queues, q);
    place.kept = {};
    if (all_queues[q].state == queue_state::blocked) age(q);
    offer(p);
    grow(p);
}

/// Nothing is left there that ends by itself, and it is not enough: others may need the room to go on.
SKEIN_INLINE void schedule_books::drop_hopeless(std::uint32_t p) {
    if (all_places[p].kept.exists() && all_places[p].running == 0 && !fits_reserved(p))
        drop_reservation(p);
}

} // namespace skein::rt::detail

// ======== skein/rt/detail/scheduler_report.ipp
// Part of the bodies of rt/scheduler.hpp: what people read. Why a request waits, what a demand lacks, listings.


#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

SKEIN_INLINE std::string schedule_books::amount_text(std::uint32_t dim, std::int64_t n) const {
    resources r;
    switch (dim) {
    case dim_cpu: return fmt::format("cpu={}", to_string(amount::of_steps(n)));
    case dim_gpu:
    case dim_share: return fmt::format("gpu={}", to_string(amount::of_steps(n)));
    case dim_memory:
        r.memory = static_cast<std::uint64_t>(std::max<std::int64_t>(n, 0));
        return r.memory == 0 ? "memory=0" : to_string(r);
    default: break;
    }
    for (const auto& [name, d] : custom_dims)
        if (d == dim) return fmt::format("{}={}", name, to_string(amount::of_steps(n)));
    return "";
}

SKEIN_INLINE std::string schedule_books::where_text(const constraint& where) const {
    std::string s;
    if (const auto number = group_in(where); number != 0) {
        s = bundle_in(where) < 0
                ? fmt::format("in group {}", number)
                : fmt::format("in bundle {} of group {}", bundle_in(where), number);
    } else if (const auto* label = label_of(where)) {
        s = fmt::format("on places labelled {}", *label);
    } else if (!is_anywhere(where)) {
        const auto p = single_place(where);
        s = p == no_index ? fmt::format("on place {}", place_in(where))
                          : fmt::format("on {}", all_places[p].name);
    } else if (spreads(where)) {
        s = "spread";
    }
    if (!avoided(where).empty())
        s += fmt::format("{}without {} places", s.empty() ? "" : ", ", avoided(where).size());
    return s;
}

/// What the places of a class lack most: "gpu=2: worker-3 has most, gpu=1". ever: if they were empty.
SKEIN_INLINE std::string schedule_books::best_place(const class_record& c, bool ever) const {
    const auto& shape = shapes[c.shape];
    const auto& where = constraints[c.where].where;
    std::string last = "no place is there";
    const auto most_of = [&](const need& n, std::int64_t& most) {
        auto best = no_index;
        for (std::uint32_t p = 0; p < all_places.size(); ++p) {
            if (!is_open(all_places[p]) || !matches(where, p)) continue;
            const auto& place = all_places[p];
            const auto has = ever ? room(place.total_needs, place.gpus).at(n.dim)
                                  : place.in.front().first->now.at(place.in.front().second, n.dim);
            if (best != no_index && has <= most) continue;
            best = p;
            most = has;
        }
        return best;
    };
    std::string with_name;
    for (const auto& n : shape.all) {
        std::int64_t most = 0;
        const auto p = most_of(n, most);
        if (p == no_index) break;
        if (most < n.least) {
            if (n.dim == no_index) {
                for (const auto& r : shape.demand.custom)
                    if (!custom_dims.contains(r.name))
                        return fmt::format("no place has ever had {}", r.name);
            }
            return fmt::format("{} has most{}, {}", all_places[p].name, ever ? "" : " free",
                               amount_text(n.dim, std::max<std::int64_t>(most, 0)));
        }
        last = "no place has all of it together";
    }
    if (shape.all.empty() && ever) return "no such place is there";
    return last;
}

SKEIN_INLINE error schedule_books::missing(const class_record& c) const {
    const auto& shape = shapes[c.shape];
    const auto& where = constraints[c.where].where;
    const auto place = where_text(where);
    if (const auto number = group_in(where); number != 0)
        return error(errc::exhausted, fmt::format("asks for {} {}, whose bundles are smaller",
                                                  to_string(shape.demand), place))
            .with_hint("make the bundles larger, or lower the demand");
    return error(errc::exhausted,
                 fmt::format("asks for {}{}{}, no place could ever hold it: {}",
                             shape.demand.empty() ? "room" : to_string(shape.demand),
                             place.empty() ? "" : " ", place, best_place(c, true)))
        .with_hint("lower the demand, or add a place that has it");
}

SKEIN_INLINE error schedule_books::missing(const group_record& g) const {
    std::string what;
    for (std::size_t b = 0; b < g.bundles.size() && b < 8; ++b)
        what += fmt::format("{}{{{}}}", b == 0 ? "" : " ", to_string(g.bundles[b].demand));
    if (g.bundles.size() > 8) what += fmt::format(" and {} more", g.bundles.size() - 8);
    std::string why = "no set of places could hold all of them";
    std::size_t open = 0;
    std::string largest;
    resources most;
    for (const auto& p : all_places) {
        if (!is_open(p) || p.host != no_index) continue;
        ++open;
        if (!largest.empty() && p.total <= most) continue;
        most = p.total;
        largest = p.name;
    }
    if (g.strategy == group_strategy::strict_spread && open < g.bundles.size())
        why = fmt::format("each wants a place of its own, and {} are there", open);
    else if (open != 0)
        why += fmt::format("; the largest of {} is {} with {}", open, largest, to_string(most));
    return error(errc::exhausted, fmt::format("placement group {} asks for {}: {}",
                                              g.id ? g.id.value() : last_group + 1, what, why))
        .with_hint("make the bundles smaller, or add places");
}

SKEIN_INLINE std::string schedule_books::why_waits(const queue_record& q) const {
    const auto& cls = classes[q.cls];
    const auto& shape = shapes[cls.shape];
    const auto place = where_text(constraints[cls.where].where);
    const auto asked =
        fmt::format("{}{}{}", shape.demand.empty() ? "room" : to_string(shape.demand),
                    place.empty() ? "" : " ", place);
    switch (q.state) {
    case queue_state::empty: return "";
    case queue_state::ready: return fmt::format("waits for its turn: {}", asked);
    case queue_state::infeasible: return missing(cls).what();
    case queue_state::blocked: break;
    }
    if (q.reserved != no_index)
        return fmt::format("waits for {}: {} is kept free for it", asked,
                           all_places[q.reserved].name);
    if (const auto number = group_in(constraints[cls.where].where); number != 0) {
        const auto g = groups.find(number);
        if (g != groups.end() && g->second.waits)
            return fmt::format("waits for {}: the group is not placed", asked);
    }
    return fmt::format("waits for {}: {}", asked, best_place(cls, false));
}

SKEIN_INLINE std::string schedule_books::why(request_id id) const {
    const auto e = requests.find(id.value());
    if (e == no_index) return "";
    const auto& entry = requests[e];
    const auto& q = all_queues[entry.queue];
    if (entry.state == request_state::queued) {
        const bool first = q.first == e;
        return why_waits(q) +
               (first ? std::string() : fmt::format("; {} wait for the same", q.queued));
    }
    const auto& name = all_places[entry.place].name;
    switch (entry.state) {
    case request_state::waiting: return fmt::format("on {}, waits for others", name);
    case request_state::resuming:
        return fmt::format("on {}, could go on: waits for cpus there", name);
    default: return fmt::format("has room on {}", name);
    }
}

SKEIN_INLINE resources schedule_books::used_of(const place_record& p) const {
    resources used;
    const auto keys = room(p.total_needs, p.gpus).keys();
    for (std::uint32_t d = dim_cpu; d < keys.size(); ++d) {
        const auto n = keys[d] - p.now.at(d);
        if (d == dim_cpu) used.cpu = amount::of_steps(n);
        if (d == dim_memory) used.memory = static_cast<std::uint64_t>(n);
        if (d == dim_gpu) used.gpu = amount::of_steps(p.now.gpus_used());
        if (d < dim_custom) continue;
        for (const auto& [name, dim] : custom_dims)
            if (dim == d) used.set(name, amount::of_steps(n));
    }
    return used;
}

} // namespace detail

SKEIN_INLINE scheduler::totals scheduler::stats() const {
    const auto& b = *books_;
    totals t;
    t.places = b.place_of.size();
    t.queued = b.queued;
    t.granted = b.granted;
    t.waiting = b.waiting;
    t.resuming = b.resuming;
    t.queues = static_cast<std::size_t>(
        std::count_if(b.all_queues.begin(), b.all_queues.end(),
                      [](const auto& q) { return q.cls != detail::no_index && q.queued != 0; }));
    t.groups = b.groups.size();
    t.grants = b.grants;
    t.reservations = b.reservations;
    t.bytes = b.requests.bytes();
    t.stalled = b.queued != 0 && b.waiting != 0 && b.running == 0 && b.resuming == 0 &&
                b.grown.empty() && b.ready_jobs.empty();
    return t;
}

SKEIN_INLINE std::vector<scheduler::queue_info> scheduler::queues() const {
    std::vector<queue_info> out;
    for (const auto& [key, index] : books_->queue_of) {
        const auto& q = books_->all_queues[index];
        if (q.queued == 0 && q.granted == 0) continue;
        const auto& cls = books_->classes[q.cls];
        queue_info i;
        i.job = books_->jobs[q.job].id;
        i.demand = books_->shapes[cls.shape].demand;
        i.where = books_->where_text(books_->constraints[cls.where].where);
        i.queued = q.queued;
        i.granted = q.granted;
        i.why = books_->why_waits(q);
        out.push_back(std::move(i));
    }
    return out;
}

SKEIN_INLINE std::vector<scheduler::place_info> scheduler::places() const {
    std::vector<place_info> out;
    for (const auto& p : books_->all_places) {
        if (!p.alive || p.host != detail::no_index) continue;
        place_info i;
        i.id = p.id;
        i.name = p.name;
        i.total = p.total;
        i.used = books_->used_of(p);
        i.granted = p.held;
        i.draining = p.draining;
        i.reserved = p.kept.exists();
        out.push_back(std::move(i));
    }
    return out;
}

SKEIN_INLINE std::vector<scheduler::group_info> scheduler::groups() const {
    std::vector<group_info> out;
    for (const auto& [number, g] : books_->groups) {
        group_info i;
        i.id = g.id;
        i.placed = !g.waits;
        for (const auto& b : g.bundles)
            i.bundles.push_back(b.place == detail::no_index ? place_id()
                                                            : books_->all_places[b.place].id);
        out.push_back(std::move(i));
    }
    return out;
}

SKEIN_INLINE std::string scheduler::why(request_id id) const { return books_->why(id); }

} // namespace skein::rt

// ======== skein/wire.hpp
// Every public header of the layer wire.
// Written by scripts/check_mirror.py --write.

#undef SKEIN_AMALGAMATED
