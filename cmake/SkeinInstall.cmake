# SPDX-License-Identifier: Apache-2.0
# The installed tree: headers, static libraries, and one export per group of targets that needs the same
# third parties: runtime (Threads, Asio, fmt, Boost.PFR), header_only (nlohmann-json too), train (LibTorch), images
# (libjpeg, libpng).
set(config_folder "${CMAKE_INSTALL_DATADIR}/cmake/skein")
if(SKEIN_COMPILED)   # the libraries are of one machine and one compiler
  set(config_folder "${CMAKE_INSTALL_LIBDIR}/cmake/skein")
endif()

function(skein_export name)
  install(TARGETS ${ARGN} EXPORT skein-${name}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT skein-${name} NAMESPACE skein:: DESTINATION ${config_folder})
endfunction()

set(runtime skein_headers skein_runtime skein_core skein_sim)
if(SKEIN_COMPILED)
  list(APPEND runtime skein_compiled)
  skein_export(runtime ${runtime})
  skein_export(header_only skein_header_only)
else()
  skein_export(header_only skein_headers skein_header_only)
  skein_export(runtime skein_runtime skein_core skein_sim)
endif()
if(SKEIN_HAVE_TORCH)
  skein_export(train skein_torch skein_train_header_only skein_train)
endif()
if(TARGET skein_images)
  skein_export(images skein_images_header_only skein_images)
endif()

if(SKEIN_HAVE_MODULE)
  install(TARGETS skein_module EXPORT skein-module ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          FILE_SET CXX_MODULES DESTINATION "${CMAKE_INSTALL_DATADIR}/skein/modules")
  install(EXPORT skein-module NAMESPACE skein:: DESTINATION ${config_folder} CXX_MODULES_DIRECTORY module)
endif()

set(skein_header_only_exports "header_only")
if(SKEIN_COMPILED)
  set(skein_header_only_exports "runtime;header_only")   # skein::headers is in the first
endif()
set(skein_module_exports runtime module)
if(NOT SKEIN_COMPILED)
  set(skein_module_exports header_only runtime module)
endif()
list(JOIN skein_module_exports " " skein_module_exports)
configure_package_config_file(cmake/skein-config.cmake.in skein-config.cmake INSTALL_DESTINATION ${config_folder})
if(SKEIN_COMPILED OR SKEIN_HAVE_MODULE)
  write_basic_package_version_file(skein-config-version.cmake COMPATIBILITY SameMinorVersion)
else()
  write_basic_package_version_file(skein-config-version.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
endif()
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/skein-config.cmake" "${CMAKE_CURRENT_BINARY_DIR}/skein-config-version.cmake"
              cmake/FindAsio.cmake cmake/FindSkeinBoost.cmake cmake/FindLibTorch.cmake cmake/SkeinCompiler.cmake cmake/SkeinModule.cmake
              cmake/SkeinPrecompile.cmake
        DESTINATION ${config_folder})
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/skein")
install(PROGRAMS scripts/check_await.py DESTINATION "${CMAKE_INSTALL_DATADIR}/skein")
install(FILES scripts/checks.py scripts/layers.toml DESTINATION "${CMAKE_INSTALL_DATADIR}/skein")

# pkg-config. The file finds its prefix from where it lies, so the installed tree can be moved as a whole.
set(pc_folder "${CMAKE_INSTALL_DATADIR}/pkgconfig")
set(skein_pc_libdir "")
set(skein_pc_cflags "")
set(skein_pc_libs "")
set(skein_pc_images_libs "")
if(SKEIN_COMPILED)
  set(pc_folder "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
  set(skein_pc_cflags " -DSKEIN_COMPILED -DSKEIN_FMT_MAJOR=${fmt_VERSION_MAJOR}")
  set(skein_pc_libdir "libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}\n")
  set(skein_pc_libs " -L\${libdir} -lskein_runtime")
  set(skein_pc_images_libs " -L\${libdir} -lskein_images")
endif()
if(IS_ABSOLUTE "${pc_folder}" OR IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  message(STATUS "skein: no skein.pc: it can be moved, and an absolute install folder cannot")
else()
  file(RELATIVE_PATH skein_pc_prefix "/prefix/${pc_folder}" "/prefix")
  string(REGEX REPLACE "/$" "" skein_pc_prefix "${skein_pc_prefix}")
  configure_file(cmake/skein.pc.in skein.pc @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/skein.pc" DESTINATION "${pc_folder}")
  if(TARGET skein_images)
    configure_file(cmake/skein-images.pc.in skein-images.pc @ONLY)
    install(FILES "${CMAKE_CURRENT_BINARY_DIR}/skein-images.pc" DESTINATION "${pc_folder}")
  endif()
endif()
