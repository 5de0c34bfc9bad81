// SPDX-License-Identifier: Apache-2.0
#pragma once
// From errno and Asio's error codes to skein::error, the same mapping everywhere.

#include <skein/core/error.hpp>

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

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/system_error.ipp>
#endif
