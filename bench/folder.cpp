// SPDX-License-Identifier: Apache-2.0
// A folder of 200,000 pictures in 1,000 classes, looked up: the second start, which finds the index
// of the first one, against the first. Files are empty; names and sizes are what is looked up. The
// caches of the system are warm: the first start has just made the files.
#include "bench.hpp"

#include <skein/data/folder.hpp>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

int main() {
    using namespace skein;
    namespace fs = std::filesystem;
    std::string path = (fs::temp_directory_path() / "skein-bench-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) return 1;
    for (int c = 0; c < 1000; ++c) {
        const auto folder = fmt::format("{}/pictures/class{:04}", path, c);
        fs::create_directories(folder);
        for (int i = 0; i < 200; ++i) std::ofstream(fmt::format("{}/image_{:06}.jpg", folder, i));
    }
    const data::folder_options how{.index_folder = path + "/index"};
    const auto start = [&] { const data::image_folder all(path + "/pictures", how); };
    // Folders that changed a moment ago are looked up again: the files above were just made.
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    const auto [second, first] = bench::in_turns<2>(7, {[&] { return bench::seconds(start); },
                                                        [&] {
                                                            fs::remove_all(how.index_folder);
                                                            return bench::seconds(start);
                                                        }});
    const bool ok = bench::figure("folder.second_start", second.median * 1e3, "ms")
                        .against("first start", first.median * 1e3)
                        .at_most(0.1)
                        .print();
    fs::remove_all(path);
    return ok ? 0 : 1;
}
