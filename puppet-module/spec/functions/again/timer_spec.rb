# frozen_string_literal: true

require 'spec_helper'

describe 'common::again::timer' do
  ['cluster', 'Again', 'again2', 'agains', 'go again-', 'until', 'untilx', 'x' * 190, "\u00fc"].each do |title|
    it { is_expected.to run.with_params('d', title).and_return(title) }
  end

  ['again', 'again-', 'again-on-failure', 'until x', 'until '].each do |title|
    it { is_expected.to run.with_params('d', title).and_raise_error(%r{d: '#{title}' names a timer of the module itself: choose another one}) }
  end

  ["a\nb", "\u007f", 'x' * 191].each do |title|
    it { is_expected.to run.with_params('d', title).and_raise_error(%r{cannot be the name of a timer: choose a title of at most 190}) }
  end

  it { is_expected.to run.with_params('d', '').and_raise_error(ArgumentError) }

  # Whoever names a timer has its name looked at: a new define is no exception. A rule names none.
  Dir["#{ROOT}/manifests/**/*.pp"].sort.each do |file|
    source = File.read(file)
    next unless source.match?(%r{^define }) && source.include?('--name')

    it "is asked by #{File.basename(file)}" do
      expect(source).to match(%r{\$timer = .*common::again::timer\('#{source[%r{^define ([\w:]+)}, 1]}', \$title\)}).and include('"--name=${timer}"')
    end
  end
end
