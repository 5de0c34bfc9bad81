// SPDX-License-Identifier: Apache-2.0
#pragma once
// The runtime that does one thing with bytes on this thread: codecs of handles ask for it.

#include <utility>

namespace skein::rt {

class runtime;

namespace detail {

/// Names a runtime on this thread while it lives; then the one before it is named again.
template <class Tag>
class runtime_mark {
public:
    explicit runtime_mark(runtime* by) noexcept : before_(std::exchange(current_, by)) {}
    runtime_mark(const runtime_mark&) = delete;
    runtime_mark& operator=(const runtime_mark&) = delete;
    ~runtime_mark() { current_ = before_; }
    /// nullptr: none is named.
    [[nodiscard]] static runtime* current() noexcept { return current_; }

private:
    static inline constinit thread_local runtime* current_ = nullptr;
    runtime* before_;
};

/// An incoming call, or a value with handles, is decoded.
using executing_mark = runtime_mark<struct executing_tag>;
/// A result is encoded.
using replying_mark = runtime_mark<struct replying_tag>;

} // namespace detail
} // namespace skein::rt
