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
