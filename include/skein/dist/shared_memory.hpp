// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory shared by processes of one host that nothing can leave behind.
//
// It is an unnamed file (memfd): it never has an entry in /dev/shm or any other folder and goes
// with the last process that maps it, kill -9 included. Peers open it through /proc/<pid>/fd/<fd>
// while the creator holds it open; the same works between threads of one process.

#include <skein/core/config.hpp>
#include <skein/core/unique_fd.hpp>

#include <cstddef>
#include <string>
#include <utility>

namespace skein::dist {

/// A mapped segment; zero when fresh. Move-only; unmaps in the destructor.
class shared_memory {
public:
    shared_memory() = default;
    shared_memory(shared_memory&& o) noexcept
        : data_(std::exchange(o.data_, nullptr)), bytes_(o.bytes_), fd_(std::move(o.fd_)) {}
    shared_memory& operator=(shared_memory&& o) noexcept {
        std::swap(data_, o.data_);
        std::swap(bytes_, o.bytes_);
        std::swap(fd_, o.fd_);
        return *this;
    }
    ~shared_memory();

    /// Makes a segment. Pages cost memory when they are first touched.
    [[nodiscard]] static shared_memory create(std::size_t bytes);

    /// Memory of this process alone: nobody can attach to it.
    [[nodiscard]] static shared_memory create_private(std::size_t bytes);

    /// Where peers find it: attach() takes this text until hide().
    [[nodiscard]] std::string path() const;

    /// Maps a peer's segment; it must have exactly the size expected.
    [[nodiscard]] static shared_memory attach(const std::string& path, std::size_t bytes);

    /// Nobody new can attach from now on; what is mapped stays.
    void hide() noexcept { fd_.reset(); }

    [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

private:
    void map(std::size_t bytes, int flags);

    void* data_ = nullptr;
    std::size_t bytes_ = 0;
    unique_fd fd_;
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/shared_memory.ipp>
#endif
