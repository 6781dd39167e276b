# frozen_string_literal: true

# `rspec -r found.rb --tag found`: of the specs, those that show that Puppet finds each name of the module: where a class or define compiles, and all
# of functions and types.

RSpec.configure do |config|
  config.define_derived_metadata do |example|
    path, line = example.values_at(:absolute_file_path, :line_number)
    example[:found] = true if path.match?(%r{/spec/(functions|type_aliases)/}) || File.readlines(path)[line - 1].include?('compile.with_all_deps')
  end
end
