// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <skein/core/unique_fd.hpp>

#include <vector>

#include <fcntl.h>
#include <sys/resource.h>

namespace skein::test {

/// Takes every descriptor that the process still may open, of few, and gives them back at its end.
class no_free_descriptors {
public:
    /// UBSan makes a pipe to look at the type of an object, and takes it for no object when it
    /// cannot.
#if defined(__clang__)
    static constexpr bool works = !__has_feature(undefined_behavior_sanitizer);
#else
    static constexpr bool works = true;
#endif

    no_free_descriptors() {
        ::getrlimit(RLIMIT_NOFILE, &before_);
        rlimit tight = before_;
        tight.rlim_cur = 128;
        ::setrlimit(RLIMIT_NOFILE, &tight);
        for (;;) {
            unique_fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
            if (!fd) return;
            taken_.push_back(std::move(fd));
        }
    }
    ~no_free_descriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
    no_free_descriptors(const no_free_descriptors&) = delete;
    no_free_descriptors& operator=(const no_free_descriptors&) = delete;

private:
    rlimit before_{};
    std::vector<unique_fd> taken_;
};

} // namespace skein::test
