# frozen_string_literal: true

require 'spec_helper'

describe 'common::again::directories' do
  let(:facts) { SYSTEMS['debian-12'].merge('again' => FACT) }
  let(:pre_condition) { 'include common::again' }

  it 'makes those that are missing' do
    expect(subject.execute('/a', '/b c')).to include(
      'command' => ['/bin/sh', '-c', 'umask 022; mkdir -p -- "$@"', 'sh', '/a', '/b c'],
      'unless'  => [['/bin/sh', '-c', 'for d; do test -d "$d" || exit 1; done', 'sh', '/a', '/b c']],
      'require' => nil,
    )
  end

  it { is_expected.to run.with_params('').and_raise_error(ArgumentError) }
end
