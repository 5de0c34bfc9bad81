// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of an error and its line. Errors are rare: nothing here is for a hot path.

#include <skein/core/file_limit.hpp>

#include <cerrno>
#include <system_error>

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

SKEIN_INLINE std::string bounded_text(std::string_view text) {
    constexpr std::size_t head = std::size_t{48} << 10, tail = std::size_t{16} << 10;
    if (text.size() <= head + tail) return std::string(text);
    std::string out(text.substr(0, head));
    out += " [... " + std::to_string(text.size() - head - tail) + " of " +
           std::to_string(text.size()) + " bytes are left out ...] ";
    out += text.substr(text.size() - tail);
    return out;
}

SKEIN_INLINE error to_error(std::exception_ptr e, errc fallback) {
    try {
        std::rethrow_exception(std::move(e));
    } catch (const error& found) {
        return found;
    } catch (const std::system_error& other) {
        if (other.code() != std::errc::file_too_large)
            return error(fallback, bounded_text(text_of(other)));
        return error(errc::too_large, bounded_text(text_of(other))).with_cause(errno_text(EFBIG));
    } catch (const std::exception& other) {
        return error(fallback, bounded_text(text_of(other)));
    } catch (...) {
        return error(fallback, "an exception that is not a std::exception");
    }
}

} // namespace skein
