// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory shared by processes of one host that nothing can leave behind.
//
// It is an unnamed file (memfd): it never has an entry in /dev/shm or any other folder and goes with
// the last process that maps it, kill -9 included. Peers open it through /proc/<pid>/fd/<fd> while
// the creator holds it open; the same works between threads of one process.

#include <skein/core/error.hpp>
#include <skein/core/unique_fd.hpp>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <fmt/core.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
    ~shared_memory() {
        if (data_ != nullptr) ::munmap(data_, bytes_);
    }

    /// Makes a segment. Pages cost memory when they are first touched.
    [[nodiscard]] static shared_memory create(std::size_t bytes) {
        shared_memory m;
        m.fd_.reset(::memfd_create("skein", MFD_CLOEXEC));
        if (!m.fd_ || ::ftruncate(m.fd_.get(), static_cast<off_t>(bytes)) != 0) {
            throw failed(fmt::format("a shared segment of {} bytes", bytes), errno);
        }
        m.map(bytes);
        return m;
    }

    /// Where peers find it: attach() takes this text until hide().
    [[nodiscard]] std::string path() const {
        return fmt::format("/proc/{}/fd/{}", ::getpid(), fd_.get());
    }

    /// Maps a peer's segment; it must have exactly the size expected.
    [[nodiscard]] static shared_memory attach(const std::string& path, std::size_t bytes) {
        shared_memory m;
        m.fd_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
        if (!m.fd_) throw failed(fmt::format("the shared segment {}", path), errno);
        struct stat info{};
        if (::fstat(m.fd_.get(), &info) != 0 || static_cast<std::size_t>(info.st_size) != bytes) {
            throw error(errc::mismatch,
                        fmt::format("the shared segment {} has {} bytes, {} expected", path,
                                    info.st_size, bytes))
                .with_hint("are all ranks the same build with the same options?");
        }
        m.map(bytes);
        m.hide();
        return m;
    }

    /// Nobody new can attach from now on; what is mapped stays.
    void hide() noexcept { fd_.reset(); }

    [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

private:
    static error failed(std::string what, int code) {
        const bool denied = code == EACCES || code == EPERM;
        return error(denied ? errc::permission_denied : errc::io, "cannot map " + std::move(what))
            .with_cause(std::strerror(code))
            .with_hint("choose the TCP ring when processes of this host may not share memory");
    }
    void map(std::size_t bytes) {
        void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
        if (p == MAP_FAILED) throw failed(fmt::format("{} bytes of shared memory", bytes), errno);
        data_ = p;
        bytes_ = bytes;
    }

    void* data_ = nullptr;
    std::size_t bytes_ = 0;
    unique_fd fd_;
};

} // namespace skein::dist
