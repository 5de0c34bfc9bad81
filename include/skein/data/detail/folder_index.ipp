// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/folder_index.hpp>.

#include <skein/core/clock.hpp>
#include <skein/core/crc32c.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/file_beside.hpp>
#include <skein/core/file_lock.hpp>
#include <skein/core/fnv.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/unique_fd.hpp>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/core.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace skein::data::detail {

// The file: a head, then records of classes, folders and files, then the text that they refer to.
// Numbers are those of the machine: an index is for one host.
struct index_text {
    std::uint64_t begin = 0; // into the text
    std::uint32_t length = 0;
};
struct index_head {
    std::uint64_t magic = 0;
    std::uint32_t sum = 0, reserved = 0; // CRC-32C of all that follows it
    std::uint64_t bytes = 0, files = 0, folders = 0, classes = 0, hash = 0;
    std::int64_t begun = 0;
    std::uint64_t root_begin = 0, root_length = 0;
};
struct index_class {
    std::uint64_t begin = 0;
    std::uint32_t length = 0, reserved = 0;
};
struct index_folder {
    std::uint64_t begin = 0;
    std::uint32_t length = 0, label = 0;
    folder_stamp stamp{};
};
struct index_file {
    std::uint64_t begin = 0;
    std::uint32_t length = 0, folder = 0;
    std::uint64_t size = 0;
};
inline constexpr std::uint64_t index_magic = 0x31786469'6e6b7301; // another layout: another number
inline constexpr std::size_t after_sum = offsetof(index_head, bytes);

template <class T>
T record_at(byte_span bytes, std::size_t at) noexcept {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

/// Sets what a head says of its file.
SKEIN_INLINE void seal_index(byte_buffer& file) {
    auto head = record_at<index_head>(file, 0);
    head.magic = index_magic;
    head.reserved = 0;
    head.bytes = file.size();
    std::memcpy(file.data(), &head, sizeof head);
    head.sum = crc32c(byte_span(file).subspan(after_sum));
    std::memcpy(file.data(), &head, sizeof head);
}

SKEIN_INLINE byte_buffer encode_index(const folder_listing& from, std::string_view root) {
    index_head head{.files = from.files.size(),
                    .folders = from.folders.size(),
                    .classes = from.classes.size(),
                    .begun = from.begun};
    std::string texts;
    const auto keep = [&](std::string_view one) {
        const index_text at{texts.size(), static_cast<std::uint32_t>(one.size())};
        texts += one;
        return at;
    };
    byte_buffer records;
    const auto put = [&](const auto& record) { append(records, as_bytes(std::span(&record, 1))); };
    fnv1a hash;
    for (const auto& name : from.classes) {
        const auto at = keep(name);
        put(index_class{at.begin, at.length, 0});
        hash.text(name);
        hash.byte(0);
    }
    for (const auto& folder : from.folders) {
        const auto at = keep(folder.path);
        put(index_folder{at.begin, at.length, folder.label, folder.stamp});
    }
    for (const auto& file : from.files) {
        const auto at = keep(file.name);
        put(index_file{at.begin, at.length, file.folder, file.size});
        hash.text(from.folders[file.folder].path);
        hash.byte('/');
        hash.text(file.name);
        hash.byte(0);
        hash.number(file.size);
    }
    const auto at = keep(root);
    head.root_begin = at.begin;
    head.root_length = at.length;
    head.hash = hash.value();
    byte_buffer out;
    out.reserve(sizeof head + records.size() + texts.size());
    append(out, as_bytes(std::span(&head, 1)));
    append(out, records);
    append(out, as_bytes(texts));
    seal_index(out);
    return out;
}

SKEIN_INLINE result<folder_index> folder_index::parse(byte_span bytes,
                                                      std::shared_ptr<const void> memory) {
    const error broken(errc::corrupt, "the index of a folder is damaged");
    if (bytes.size() < sizeof(index_head)) return broken;
    const auto head = record_at<index_head>(bytes, 0);
    if (head.magic != index_magic || head.reserved != 0 || head.bytes != bytes.size() ||
        head.sum != crc32c(bytes.subspan(after_sum)))
        return broken;
    const auto most = bytes.size();
    if (head.files > most || head.folders > most || head.classes > most) return broken;
    folder_index it;
    it.class_at_ = sizeof head;
    it.folder_at_ = it.class_at_ + head.classes * sizeof(index_class);
    it.file_at_ = it.folder_at_ + head.folders * sizeof(index_folder);
    it.text_at_ = it.file_at_ + head.files * sizeof(index_file);
    if (it.text_at_ > most) return broken;
    const auto texts = most - it.text_at_;
    const auto is_there = [&](std::uint64_t begin, std::uint64_t length) {
        return begin <= texts && length <= texts - begin;
    };
    if (!is_there(head.root_begin, head.root_length)) return broken;
    for (std::uint64_t i = 0; i < head.classes; ++i) {
        const auto one = record_at<index_class>(bytes, it.class_at_ + i * sizeof(index_class));
        if (!is_there(one.begin, one.length)) return broken;
    }
    for (std::uint64_t i = 0; i < head.folders; ++i) {
        const auto one = record_at<index_folder>(bytes, it.folder_at_ + i * sizeof(index_folder));
        if (!is_there(one.begin, one.length) || one.label >= head.classes) return broken;
    }
    for (std::uint64_t i = 0; i < head.files; ++i) {
        const auto one = record_at<index_file>(bytes, it.file_at_ + i * sizeof(index_file));
        if (!is_there(one.begin, one.length) || one.folder >= head.folders) return broken;
    }
    it.bytes_ = bytes;
    it.memory_ = std::move(memory);
    it.files_ = head.files;
    it.folders_ = head.folders;
    it.classes_ = head.classes;
    it.hash_ = head.hash;
    it.begun_ = head.begun;
    it.root_ = as_text(bytes.subspan(it.text_at_ + head.root_begin, head.root_length));
    return it;
}

SKEIN_INLINE std::string_view folder_index::text_at(std::size_t record) const noexcept {
    const auto at = record_at<index_text>(bytes_, record);
    return as_text(bytes_.subspan(text_at_ + at.begin, at.length));
}

SKEIN_INLINE folder_index::entry folder_index::at(std::uint64_t sample) const noexcept {
    const auto record = file_at_ + static_cast<std::size_t>(sample) * sizeof(index_file);
    const auto file = record_at<index_file>(bytes_, record);
    const auto folder = folder_at_ + file.folder * sizeof(index_folder);
    return {text_at(folder), text_at(record), record_at<index_folder>(bytes_, folder).label,
            file.size};
}

SKEIN_INLINE std::vector<std::string> folder_index::classes() const {
    std::vector<std::string> names;
    for (std::uint64_t i = 0; i < classes_; ++i)
        names.emplace_back(text_at(class_at_ + i * sizeof(index_class)));
    return names;
}

SKEIN_INLINE bool folder_index::is_current() const {
    // A name that came into a folder in the moment after it was read would not be told by its
    // stamp.
    constexpr std::int64_t moment = 2'000'000'000;
    for (std::uint64_t i = 0; i < folders_; ++i) {
        const auto record = folder_at_ + i * sizeof(index_folder);
        const auto then = record_at<index_folder>(bytes_, record).stamp;
        folder_stamp now;
        if (!stamp_of(join_path(std::string(root_), text_at(record)), now)) return false;
        if (now != then || now.changed > begun_ * 1'000'000 - moment) return false;
    }
    return true;
}

/// The index that is kept in a file, if it is this user's, whole, of that folder, and current.
SKEIN_INLINE std::shared_ptr<const folder_index> kept_index(const std::string& file,
                                                            const std::string& root) {
    unique_fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat s{};
    if (!fd || ::fstat(fd.get(), &s) != 0 || !S_ISREG(s.st_mode) || s.st_uid != ::geteuid() ||
        s.st_size <= 0)
        return nullptr;
    const auto size = static_cast<std::size_t>(s.st_size);
    void* const at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (at == MAP_FAILED) return nullptr;
    const std::shared_ptr<const void> mapped(
        at, [size](const void* memory) { ::munmap(const_cast<void*>(memory), size); });
    auto index = folder_index::parse({static_cast<const std::byte*>(at), size}, mapped);
    if (!index || index->root() != root || !index->is_current()) return nullptr;
    return std::make_shared<const folder_index>(std::move(*index));
}

/// Waits for the lock of an index; none where that takes a minute, or there are no locks.
SKEIN_INLINE unique_fd lock_index(const std::string& path) {
    unique_fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    const auto end = system_clock().now() + std::chrono::minutes(1);
    return fd && lock_until(fd.get(), end) == file_lock::held ? std::move(fd) : unique_fd();
}

/// Puts an index into its place; under the lock.
SKEIN_INLINE void keep_index(const std::string& file, byte_span bytes) {
    file_beside fresh(file + ".new", 0600, left_over::removed);
    (void)(fresh && fresh.append(bytes) && fresh.take_place(file)); // without it: read again
}

SKEIN_INLINE std::string index_name(std::string_view root, std::string_view host) {
    fnv1a name;
    name.text(root);
    name.byte(0);
    name.text(host);
    return fmt::format("{:016x}-{}.folder", name.value(), ::geteuid());
}

SKEIN_INLINE std::string host_name() {
    char host[256] = "";
    (void)::gethostname(host, sizeof host - 1);
    return host;
}

SKEIN_INLINE std::shared_ptr<const folder_index> folder_index::open(const std::string& root,
                                                                    const std::string& keep_in) {
    std::string file;
    unique_fd lock;
    if (!keep_in.empty() && posix_disk().make_dirs(keep_in)) {
        file = join_path(keep_in, index_name(root, host_name()));
        if (auto kept = kept_index(file, root)) return kept;
        lock = lock_index(file + ".lock");
        if (auto kept = kept_index(file, root)) return kept; // by who had the lock before
    }
    const auto bytes = std::make_shared<const byte_buffer>(encode_index(list_classes(root), root));
    if (lock) keep_index(file, *bytes);
    return std::make_shared<const folder_index>(parse(*bytes, bytes).value());
}

SKEIN_INLINE std::string default_index_folder() {
    const auto set = [](const char* name) -> std::string {
        const char* const value = std::getenv(name);
        return value != nullptr && *value == '/' ? value : "";
    };
    if (const auto cache = set("XDG_CACHE_HOME"); !cache.empty()) return join_path(cache, "skein");
    if (const auto home = set("HOME"); !home.empty()) return join_path(home, ".cache/skein");
    return "";
}

} // namespace skein::data::detail
