// SPDX-License-Identifier: Apache-2.0
#pragma once
// A few file descriptors kept back, for files that must be written when the process has no free
// ones: a job whose port strangers are busy with still writes its curve.
//
//     descriptor_reserve reserve;
//     auto done = reserve.run([&] { return disk.replace(path, bytes); });

#include <skein/core/error.hpp>
#include <skein/core/unique_fd.hpp>

#include <cstddef>
#include <vector>

#include <fcntl.h>

namespace skein {

/// Holds `count` descriptors that mean nothing; fewer when the process has no more. One thread.
class descriptor_reserve {
public:
    explicit descriptor_reserve(std::size_t count = 4) : count_(count) { fill(); }

    [[nodiscard]] std::size_t size() const noexcept { return kept_.size(); }

    /// What body(), a callable that returns a result<T> and may be called twice, returns. When that
    /// is errc::exhausted the kept descriptors are closed and it is called once more: another
    /// thread may be faster and take them, then it fails again. Afterwards as many as there are are
    /// kept again.
    template <class Body>
    [[nodiscard]] auto run(Body body) {
        auto done = body();
        if (!done && done.error().code() == errc::exhausted && !kept_.empty()) {
            kept_.clear();
            done = body();
        }
        fill();
        return done;
    }

private:
    void fill() {
        while (kept_.size() < count_) {
            unique_fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
            if (!fd) return;
            kept_.push_back(std::move(fd));
        }
    }

    std::size_t count_;
    std::vector<unique_fd> kept_;
};

} // namespace skein
