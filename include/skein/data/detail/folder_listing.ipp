// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/folder_listing.hpp>.

#include <skein/core/clock.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/unique_fd.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/core.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

namespace skein::data::detail {

SKEIN_INLINE folder_stamp stamp_from(const struct stat& s) noexcept {
    const auto nanoseconds = [](const timespec& t) {
        return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
    };
    return {s.st_dev, s.st_ino, nanoseconds(s.st_mtim), nanoseconds(s.st_ctim)};
}

SKEIN_INLINE bool stamp_of(const std::string& path, folder_stamp& into) noexcept {
    struct stat s{};
    if (::stat(path.c_str(), &s) != 0 || !S_ISDIR(s.st_mode)) return false;
    into = stamp_from(s);
    return true;
}

/// Whether torchvision takes a file of this name for a picture.
SKEIN_INLINE bool is_picture_name(std::string_view name) noexcept {
    static constexpr std::array<std::string_view, 9> endings{
        ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"};
    const auto ends_with = [&](std::string_view ending) {
        if (name.size() < ending.size()) return false;
        const auto tail = name.substr(name.size() - ending.size());
        return std::ranges::equal(tail, ending, {}, [](char c) {
            return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        });
    };
    return std::ranges::any_of(endings, ends_with);
}

/// Names in one folder, sorted by their bytes.
struct names_of_folder {
    folder_stamp stamp{};
    std::vector<std::string> folders;
    std::vector<std::pair<std::string, std::uint64_t>> pictures; // and their sizes
};

SKEIN_INLINE names_of_folder names_in(const std::string& path) {
    const auto failed = [&] { return errno_error(errno, "list", path); };
    unique_fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    struct stat s{};
    if (!fd || ::fstat(fd.get(), &s) != 0) throw failed();
    names_of_folder found;
    found.stamp = stamp_from(s);
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::fdopendir(fd.get()), &::closedir);
    if (!folder) throw failed();
    const int at = fd.release(); // the folder closes it
    for (;;) {
        errno = 0;
        const dirent* const entry = ::readdir(folder.get());
        if (entry == nullptr) {
            if (errno != 0) throw failed();
            break;
        }
        const std::string_view name = entry->d_name;
        if (name == "." || name == "..") continue;
        const bool is_picture = is_picture_name(name);
        if (entry->d_type == DT_REG && !is_picture) continue;
        if (::fstatat(at, entry->d_name, &s, 0) != 0) {
            if (!is_picture) continue; // a link that points at nothing
            throw errno_error(errno, "look up", join_path(path, name));
        }
        if (S_ISDIR(s.st_mode))
            found.folders.emplace_back(name);
        else if (is_picture)
            found.pictures.emplace_back(name, static_cast<std::uint64_t>(s.st_size));
    }
    std::ranges::sort(found.folders);
    std::ranges::sort(found.pictures);
    return found;
}

/// The folder of a class and all below it, sorted by path: as Python sorts what os.walk() gives.
struct class_walk {
    struct seen {
        std::string path;
        std::size_t above;
        names_of_folder names;
    };
    std::vector<seen> all;

    void from(const std::string& root, const std::string& name) {
        all.push_back({name, 0, names_in(join_path(root, name))});
        for (std::size_t i = 0; i < all.size(); ++i) {
            const auto below = all[i].names.folders; // `all` grows
            for (const auto& each : below) {
                auto path = join_path(all[i].path, each);
                auto names = names_in(join_path(root, path));
                for (auto up = i;; up = all[up].above) {
                    const auto& above = all[up].names.stamp;
                    if (above.inode == names.stamp.inode && above.device == names.stamp.device)
                        throw error(errc::invalid_argument,
                                    fmt::format("folder '{}' is its own parent '{}' again: a link "
                                                "leads back",
                                                printable(join_path(root, path)),
                                                printable(all[up].path)));
                    if (up == 0) break;
                }
                all.push_back({std::move(path), i, std::move(names)});
            }
        }
        std::ranges::sort(all, {}, &seen::path);
    }
};

SKEIN_INLINE std::string some_of(const std::vector<std::string>& names) {
    std::string text;
    for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 5); ++i)
        text += fmt::format("{}'{}'", i == 0 ? "" : ", ", printable(names[i]));
    if (names.size() > 5) text += fmt::format(" and {} more", names.size() - 5);
    return text;
}

/// What is wrong with the folders of a root before anything in them is looked at.
SKEIN_INLINE void check_classes(const std::string& root, const names_of_folder& top) {
    const auto where = fmt::format("image_folder '{}'", printable(root));
    if (top.folders.empty()) {
        auto why = error(errc::not_found, "it has no folders, so no classes").with_where(where);
        throw std::move(why).with_hint(
            top.pictures.empty()
                ? "pictures stand in a folder for each class: cat/1.jpg, dog/1.jpg"
                : fmt::format("{} pictures stand in the folder itself: move them into a folder for "
                              "each class",
                              top.pictures.size()));
    }
    static constexpr std::array<std::string_view, 7> parts{
        "train", "training", "val", "valid", "validation", "test", "testing"};
    const auto is_part = [](const std::string& name) {
        return std::ranges::find(parts, name) != parts.end();
    };
    if (std::ranges::all_of(top.folders, is_part))
        throw error(errc::invalid_argument,
                    fmt::format("its folders are {}: they would be taken for classes",
                                some_of(top.folders)))
            .with_where(where)
            .with_hint(fmt::format("name one of them: '{}'",
                                   printable(join_path(root, top.folders.front()))));
}

/// Whether a folder of a path begins with a dot (.ipynb_checkpoints, .Trash-1000).
SKEIN_INLINE bool is_hidden(std::string_view path) noexcept {
    return path.starts_with('.') || path.find("/.") != std::string_view::npos;
}

SKEIN_INLINE folder_listing list_classes(const std::string& root) {
    folder_listing all;
    all.begun = system_clock().wall().count();
    auto top = names_in(root);
    check_classes(root, top);
    all.folders.push_back({"", 0, top.stamp});
    std::vector<std::string> empty, hidden;
    for (const auto& name : top.folders) {
        const auto label = static_cast<std::uint32_t>(all.classes.size());
        const auto before = all.files.size();
        class_walk walk;
        walk.from(root, name);
        for (auto& each : walk.all) {
            if (!each.names.pictures.empty() && is_hidden(each.path)) hidden.push_back(each.path);
            const auto folder = static_cast<std::uint32_t>(all.folders.size());
            all.folders.push_back({std::move(each.path), label, each.names.stamp});
            for (auto& [file, size] : each.names.pictures)
                all.files.push_back({folder, std::move(file), size});
        }
        if (all.files.size() == before) empty.push_back(name);
        all.classes.push_back(name);
    }
    if (!hidden.empty())
        throw error(errc::invalid_argument,
                    fmt::format("pictures in hidden folders: {}; they would "
                                "be taken for classes, or for more of one",
                                some_of(hidden)))
            .with_where(fmt::format("image_folder '{}'", printable(root)))
            .with_hint(
                "remove what Jupyter, a desktop or a file server has put there, or rename it");
    if (!empty.empty())
        throw error(errc::not_found, fmt::format("classes without pictures: {}", some_of(empty)))
            .with_where(fmt::format("image_folder '{}'", printable(root)))
            .with_hint("remove the folder, or fill it: names of pictures end in .jpg, .jpeg, .png, "
                       ".ppm, .bmp, .pgm, .tif, .tiff or .webp");
    return all;
}

} // namespace skein::data::detail
