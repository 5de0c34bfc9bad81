// SPDX-License-Identifier: Apache-2.0
#pragma once
// What torchvision and Pillow make of small pictures: tests/data/oracle/kernels.bin, written by make_oracle.py beside it.

#include <skein/data/image.hpp>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace skein_test {

struct oracle_entry {
    std::vector<std::int32_t> extents;
    std::vector<char> values;

    template <class T>
    [[nodiscard]] std::vector<T> as() const {
        std::vector<T> made(values.size() / sizeof(T));
        std::memcpy(made.data(), values.data(), values.size());
        return made;
    }
    /// A picture in the current arena.
    template <class T, int C>
    [[nodiscard]] skein::data::image<T, C> picture() const {
        const std::size_t at = skein::data::image<T, C>::is_planar ? 1 : 0;
        const auto made = skein::data::make_image<T, C>(extents.at(at), extents.at(at + 1));
        std::memcpy(made.data, values.data(), values.size());
        return made;
    }
};

inline const std::map<std::string, oracle_entry>& oracle() {
    static const auto entries = [] {
        const char* const top = std::getenv("SKEIN_SOURCE_DIR");
        std::ifstream file(std::string(top != nullptr ? top : ".") +
                               "/tests/data/oracle/kernels.bin",
                           std::ios::binary);
        const std::string all{std::istreambuf_iterator<char>(file), {}};
        std::map<std::string, oracle_entry> made;
        std::size_t at = 0;
        const auto number = [&] {
            std::uint32_t value = 0;
            std::memcpy(&value, all.data() + at, sizeof value);
            at += sizeof value;
            return value;
        };
        while (at < all.size()) {
            const auto length = number();
            auto& entry = made[all.substr(at, length)];
            at += length;
            std::size_t size = all.at(at++) == 'f' ? 4 : 1;
            for (auto left = number(); left > 0; --left) {
                entry.extents.push_back(static_cast<std::int32_t>(number()));
                size *= static_cast<std::size_t>(entry.extents.back());
            }
            entry.values.assign(all.begin() + static_cast<std::ptrdiff_t>(at),
                                all.begin() + static_cast<std::ptrdiff_t>(at + size));
            at += size;
        }
        return made;
    }();
    return entries;
}

/// The largest difference; huge if they have not as many values.
template <class T>
double difference(std::span<T> made, const oracle_entry& wanted) {
    const auto expected = wanted.as<T>();
    if (expected.size() != made.size()) return 1e30;
    double most = 0;
    for (std::size_t i = 0; i < made.size(); ++i) {
        const double apart = static_cast<double>(made[i]) - static_cast<double>(expected[i]);
        most = apart > most ? apart : -apart > most ? -apart : most;
    }
    return most;
}

} // namespace skein_test
