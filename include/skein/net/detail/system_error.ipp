// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one table from errno and Asio's codes to kinds of failure.

#include <skein/net/asio.hpp>

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
