// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of objects/arena.hpp.

#include <skein/core/error.hpp>
#include <skein/core/file_limit.hpp>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::objects {

struct arena::memory {
    unique_fd file; ///< none: `plain` is it
    std::uint64_t size = 0;
    std::vector<std::byte> plain;
    std::mutex mutex; ///< of `read`
    std::byte* read = nullptr;

    memory() = default;
    memory(const memory&) = delete;
    memory& operator=(const memory&) = delete;
    ~memory() {
        if (read != nullptr && file) ::munmap(read, size);
    }
    std::byte* mapped() {
        const std::lock_guard lock(mutex);
        if (read != nullptr) return read;
        void* const at =
            ::mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
        if (at == MAP_FAILED)
            throw error(errc::exhausted, fmt::format("cannot map the {} bytes of objects", size))
                .with_cause(errno_text(errno));
        (void)::madvise(at, size, MADV_DONTDUMP);
        read = static_cast<std::byte*>(at);
        return read;
    }
    void check(std::uint64_t at, std::uint64_t n) const {
        if (at > size || n > size - at)
            throw error(
                errc::malformed,
                fmt::format("{} bytes at {} are not within the {} bytes of objects", n, at, size));
    }
};

SKEIN_INLINE arena arena::create(std::uint64_t bytes) {
    outlive_file_limit(); // it counts for memory that has a file, too
    unique_fd file(::memfd_create("skein-objects", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
        ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        throw error(errc::exhausted, fmt::format("cannot share {} bytes for objects", bytes))
            .with_cause(errno_text(errno));
    arena out;
    out.held_ = std::make_shared<memory>();
    out.held_->file = std::move(file);
    out.held_->size = bytes;
    return out;
}

SKEIN_INLINE arena arena::open(unique_fd from) {
    struct stat info{};
    const int seals = ::fcntl(from.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(from.get(), &info) != 0 ||
        info.st_size <= 0)
        throw error(errc::malformed, "the file that was inherited is no memory for objects");
    arena out;
    out.held_ = std::make_shared<memory>();
    out.held_->file = std::move(from);
    out.held_->size = static_cast<std::uint64_t>(info.st_size);
    return out;
}

SKEIN_INLINE arena arena::in_memory(std::uint64_t bytes) {
    arena out;
    out.held_ = std::make_shared<memory>();
    out.held_->size = bytes;
    out.held_->plain.resize(bytes);
    out.held_->read = out.held_->plain.data();
    return out;
}

SKEIN_INLINE std::uint64_t arena::bytes() const noexcept { return held_ ? held_->size : 0; }
SKEIN_INLINE int arena::fd() const noexcept { return held_ ? held_->file.get() : -1; }

SKEIN_INLINE byte_span arena::view(std::uint64_t at, std::uint64_t n) const {
    held_->check(at, n);
    return {held_->mapped() + at, static_cast<std::size_t>(n)};
}

SKEIN_INLINE arena::window arena::write(std::uint64_t at, std::uint64_t n) const {
    held_->check(at, n);
    window out;
    if (!held_->file) {
        out.bytes_ = {held_->plain.data() + at, static_cast<std::size_t>(n)};
        return out;
    }
    const auto before = at % page;
    const auto whole = static_cast<std::size_t>(n + before);
    // Its pages at once: faults one by one cost more than the copy.
    void* const mapped = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                                held_->file.get(), static_cast<off_t>(at - before));
    if (mapped == MAP_FAILED)
        throw error(errc::exhausted, fmt::format("cannot map {} bytes to write an object", n))
            .with_cause(errno_text(errno));
    out.mapped_ = {static_cast<std::byte*>(mapped), whole};
    out.bytes_ = out.mapped_.subspan(static_cast<std::size_t>(before));
    return out;
}

SKEIN_INLINE void arena::give_back(std::uint64_t at, std::uint64_t n) const noexcept {
    if (!held_ || at > held_->size || n > held_->size - at) return;
    if (held_->file) {
        (void)::fallocate(held_->file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          static_cast<off_t>(at), static_cast<off_t>(n));
    } else {
        std::fill_n(held_->plain.begin() + static_cast<std::ptrdiff_t>(at),
                    static_cast<std::size_t>(n), std::byte{0});
    }
}

SKEIN_INLINE arena::window::window(window&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), mapped_(std::exchange(other.mapped_, {})) {}
SKEIN_INLINE arena::window& arena::window::operator=(window&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    return *this;
}
SKEIN_INLINE arena::window::~window() {
    if (!mapped_.empty()) ::munmap(mapped_.data(), mapped_.size());
}

} // namespace skein::objects
