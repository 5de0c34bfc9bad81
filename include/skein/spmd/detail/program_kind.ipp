// SPDX-License-Identifier: Apache-2.0
#pragma once
// One byte to the supervisor, and a map of variables from it.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/spmd/detail/environment.ipp>
#include <skein/spmd/detail/torch_variables.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/wire/decode.hpp>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace skein::spmd {

namespace detail {

/// Null: there is none. The text is kept, so that no compiler drops it from the file.
SKEIN_INLINE std::atomic<const char*>& noted_mark() noexcept {
    static constinit std::atomic<const char*> noted = nullptr;
    return noted;
}

/// A file as memory, while this lives.
class mapped_file {
public:
    explicit mapped_file(const std::string& path) {
        const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        struct stat about{};
        if (!file || ::fstat(file.get(), &about) != 0 || about.st_size <= 0) return;
        const auto size = static_cast<std::size_t>(about.st_size);
        void* const at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
        if (at == MAP_FAILED) return;
        text_ = std::string_view(static_cast<const char*>(at), size);
    }
    mapped_file(const mapped_file&) = delete;
    mapped_file& operator=(const mapped_file&) = delete;
    ~mapped_file() {
        if (!text_.empty()) ::munmap(const_cast<char*>(text_.data()), text_.size());
    }
    [[nodiscard]] std::string_view text() const noexcept { return text_; }

private:
    std::string_view text_;
};

/// Until the other side has said its last byte.
SKEIN_INLINE byte_buffer read_answer(int from) {
    byte_buffer all;
    std::byte piece[4096];
    for (;;) {
        const auto n = ::read(from, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return all;
        append(all, byte_span(piece, static_cast<std::size_t>(n)));
    }
}

} // namespace detail

SKEIN_INLINE bool note_elastic_program(const char* mark) noexcept {
    detail::noted_mark() = mark;
    return true;
}

SKEIN_INLINE program_kind own_program_kind() noexcept {
    return detail::noted_mark() != nullptr ? program_kind::elastic : program_kind::fixed;
}

SKEIN_INLINE bool shows_elastic(const std::string& executable) {
    const detail::mapped_file file(executable);
    if (!file.text().starts_with("\x7f"
                                 "ELF"))
        return false;
    // In two parts: a program that only looks for the mark is not to have it.
    constexpr std::string_view first = "skein: this program has ", rest = "elastic workers";
    auto text = file.text();
    for (;;) {
        const auto* const found = ::memmem(text.data(), text.size(), first.data(), first.size());
        if (found == nullptr) return false;
        text.remove_prefix(static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) +
                           first.size());
        if (text.starts_with(rest)) return true;
    }
}

SKEIN_INLINE void tell_program_kind(program_kind mine) {
    auto& start = detail::start_of_this_process();
    if (start.variables.erase(asks_kind_variable) == 0) return;
    const auto link = std::exchange(start.socket, unique_fd());
    ::fcntl(link.get(), F_SETFL, 0); // it may wait
    const auto word = static_cast<char>(mine);
    ssize_t sent = 0;
    do {
        sent = ::write(link.get(), &word, 1);
    } while (sent < 0 && errno == EINTR);
    const auto answer = sent == 1 ? detail::read_answer(link.get()) : byte_buffer();
    if (answer.empty())
        throw error(errc::closed, "the supervisor that has started this process is gone");
    auto told = wire::decode<std::map<std::string, std::string>>(answer);
    if (!told) throw told.error();
    if (told->contains(elastic_variable))
        for (const char* name : detail::torch_variables) ::unsetenv(name);
    for (auto& [name, value] : *told) start.variables.insert_or_assign(name, std::move(value));
}

} // namespace skein::spmd
