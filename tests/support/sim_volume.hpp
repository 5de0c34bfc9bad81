// SPDX-License-Identifier: Apache-2.0
#pragma once
// A volume for files of objects on a simulated disk. Files have names there, so that the disk counts
// them and tests can damage them: "spill/1" and so on; they go when they are closed.
//
//     sim::disk disk({.capacity = 1 << 20});
//     objects::store store(memory, 1, {}, std::make_unique<test::sim_volume>(disk));

#include <skein/core/disk.hpp>
#include <skein/objects/spill.hpp>
#include <skein/sim/disk.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace skein::test {

/// The disk must outlive all files.
class sim_volume final : public objects::spill_volume {
public:
    explicit sim_volume(sim::disk& on) : disk_(on) { (void)disk_.make_dirs("spill"); }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }
    [[nodiscard]] result<std::unique_ptr<file>> make() override {
        const auto path = "spill/" + std::to_string(++last_);
        auto made = disk_.open(path, open_mode::create_new);
        if (!made) return made.error();
        return std::unique_ptr<file>(std::make_unique<named>(disk_, path, std::move(*made)));
    }
    [[nodiscard]] result<room> left() override {
        const auto free = disk_.free_space("spill");
        if (!free) return free.error();
        return room{disk_.options().capacity, *free};
    }

private:
    class named final : public file {
    public:
        named(sim::disk& on, std::string path, std::unique_ptr<file> inner)
            : disk_(on), path_(std::move(path)), inner_(std::move(inner)) {}
        ~named() override {
            inner_.reset();
            for (int tries = 0; tries < 100 && !disk_.remove(path_); ++tries) {}
        }
        result<std::size_t> read_at(std::uint64_t offset, mut_byte_span into) override {
            return inner_->read_at(offset, into);
        }
        result<void> write_at(std::uint64_t offset, byte_span bytes) override {
            return inner_->write_at(offset, bytes);
        }
        result<void> append(byte_span bytes) override { return inner_->append(bytes); }
        result<std::uint64_t> size() override { return inner_->size(); }
        result<void> truncate(std::uint64_t bytes) override { return inner_->truncate(bytes); }
        result<void> sync() override { return inner_->sync(); }
        result<void> close() override { return inner_->close(); }

    private:
        sim::disk& disk_;
        std::string path_;
        std::unique_ptr<file> inner_;
    };

    sim::disk& disk_;
    std::string name_ = "spill (simulated)";
    std::uint64_t last_ = 0;
};

} // namespace skein::test
